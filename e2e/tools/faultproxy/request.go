package faultproxy

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// Object names what a request is about. Name is empty for a list of more than one.
type Object struct {
	// Resource is the plural name, such as "configmaps".
	Resource        string
	Namespace, Name string
}

// Request is one request that arrived, whatever became of it.
type Request struct {
	Object
	// At is when it arrived.
	At time.Time
	// Verb is GET, LIST or WATCH, or the HTTP method in capitals of what changes
	// something.
	Verb string
	// Credential tells apart the tokens that requests carry; see Credential.
	Credential string
	// User is whom it impersonates, empty for nobody.
	User string
	// Fault was on when it arrived.
	Fault Fault
	// Initial tells that it is a watch that begins with the state.
	Initial bool

	// version is the resourceVersion that it names.
	version string
}

// Credential returns what stands for a token, and doesn't tell it.
func Credential(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:8])
}

// describe reads a request's URL: /api/v1/namespaces/NS/RESOURCE[/NAME], or the same
// below /apis/GROUP/VERSION. Of what has no namespace it reads the resource only.
func describe(r *http.Request) Request {
	query := r.URL.Query()
	d := Request{
		At:      time.Now(),
		Verb:    r.Method,
		version: query.Get("resourceVersion"),
		Initial: query.Get("sendInitialEvents") == "true",
		User:    r.Header.Get(authenticationv1.ImpersonateUserHeader),
	}
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		d.Credential = Credential(token)
	}
	_, path, _ := strings.Cut(r.URL.Path, "/namespaces/")
	parts := strings.Split(path, "/")
	if len(parts) < 2 {
		d.Resource = withoutNamespace(r.URL.Path)
		return d
	}
	d.Namespace, d.Resource = parts[0], parts[1]
	d.Name, _ = strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	switch {
	case r.Method != http.MethodGet:
	case len(parts) > 2:
		d.Name = parts[2]
	case query.Get("watch") == "true":
		d.Verb = "WATCH"
	default:
		d.Verb = "LIST"
	}
	return d
}

// withoutNamespace returns the resource of a path without a namespace, "" of what names none.
func withoutNamespace(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		return parts[2]
	case len(parts) > 3 && parts[0] == "apis":
		return parts[3]
	}
	return ""
}

// continues tells that r is a watch that goes on from a resourceVersion of its own.
func (r Request) continues() bool {
	return r.Verb == "WATCH" && !r.Initial && r.version != "" && r.version != "0"
}
