package faultproxy

import (
	"net/http"
	"strings"
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
	// Verb is GET, LIST or WATCH, or the HTTP method in capitals of what changes something.
	Verb string
}

// describe reads a request's URL: /api/v1/[namespaces/NS/]RESOURCE[/NAME], or the same below /apis/GROUP/VERSION.
func describe(r *http.Request) Request {
	query := r.URL.Query()
	d := Request{Verb: r.Method}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch prefix := map[string]int{"api": 2, "apis": 3}[parts[0]]; {
	case prefix == 0 || len(parts) <= prefix:
		return d
	case len(parts) > prefix+2 && parts[prefix] == "namespaces":
		d.Namespace = parts[prefix+1]
		parts = parts[prefix+2:]
	default:
		parts = parts[prefix:]
	}
	d.Resource = parts[0]
	d.Name, _ = strings.CutPrefix(query.Get("fieldSelector"), "metadata.name=")
	switch {
	case len(parts) > 1:
		d.Name = parts[1]
	case r.Method != http.MethodGet:
	case query.Get("watch") == "true":
		d.Verb = "WATCH"
	default:
		d.Verb = "LIST"
	}
	return d
}
