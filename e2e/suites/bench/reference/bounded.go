package main

import "net/http"

// maxOpening is how many watches and lists a bounded program opens at once, as the plugin
// does for a kind of objects.
const maxOpening = 16

// bounded is a transport on which few requests at a time wait for the headers of their
// answer.
type bounded struct {
	next  http.RoundTripper
	slots chan struct{}
}

func newBounded(next http.RoundTripper) http.RoundTripper {
	return &bounded{next: next, slots: make(chan struct{}, maxOpening)}
}

// RoundTrip returns when the headers have arrived; the events of a watch come after that.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case b.slots <- struct{}{}:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	defer func() { <-b.slots }()
	return b.next.RoundTrip(r)
}
