package rights

import (
	"bytes"
	"io"
	"net/http"

	"k8s.io/client-go/transport"
)

// Refusals hear when the API server refuses a request of the plugin's own account. They are safe for
// concurrent use.
type Refusals struct {
	// heard has room for one signal.
	heard chan struct{}
}

// NewRefusals returns Refusals that have heard of none.
func NewRefusals() *Refusals { return &Refusals{heard: make(chan struct{}, 1)} }

// forget has those be heard only that come from now on.
func (r *Refusals) forget() {
	select {
	case <-r.heard:
	default:
	}
}

// Wrap returns a transport that sends by next, and tells of each answer that refuses the account. It is for
// requests with the credential of the plugin, also where they impersonate another user: that user may be
// refused.
func (r *Refusals) Wrap(next http.RoundTripper) http.RoundTripper { return &listener{next, r} }

type listener struct {
	next     http.RoundTripper
	refusals *Refusals
}

// RoundTrip implements http.RoundTripper.
func (l *listener) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err == nil && response.StatusCode == http.StatusForbidden && !refusesUser(response, request.Header.Get(transport.ImpersonateUserHeader)) {
		select {
		case l.refusals.heard <- struct{}{}:
		default: // one waits already
		}
	}
	return response, err
}

// WrappedRoundTripper returns the transport below.
func (l *listener) WrappedRoundTripper() http.RoundTripper { return l.next }

// maxText is more than the part of a refusal that names who is refused.
const maxText = 8 << 10

// refusesUser says whether an answer refuses the user that its request impersonates, "" for none, and not
// the impersonation. It leaves the body as it was.
func refusesUser(response *http.Response, user string) bool {
	if user == "" {
		return false
	}
	// Whoever reads on gets the error again.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxText))
	body := response.Body
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), body), body}
	// JSON has quotes with a backslash, and protobuf without.
	return bytes.Contains(bytes.ReplaceAll(text, []byte(`\"`), []byte(`"`)), []byte(`User "`+user+`"`))
}
