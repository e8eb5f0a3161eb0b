// Package dialer makes the connections to the API server, one at a time.
//
// The transport of net/http dials once for each request that finds no HTTP/2 connection with a
// free stream, though one new connection serves a hundred requests. A node that opens 16
// watches at once would make 16 TLS handshakes for each hundred objects. With this package, a
// request dials only if the connection that another one makes was not enough.
//
// The package owns when a connection is made. It must not know what is sent over it.
package dialer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

const (
	// maxWait is how long a request waits for the connection of another one before it dials
	// too, since that one may fail. It is as long as a handshake may take, so that a server
	// that accepts connections and stalls gets few of them.
	maxWait = 5 * time.Second
	// defaultHandOver is how long the transport may take to give a new connection to all waiting
	// requests.
	defaultHandOver = 20 * time.Millisecond
)

// errNotNeeded ends a dial whose request has another connection. No caller sees it.
var errNotNeeded = errors.New("another connection serves the request")

// Dial makes a connection, as the DialContext of a net.Dialer does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer makes connections for the requests of one http.Transport. It is safe for concurrent
// use and has no goroutine of its own.
type Dialer struct {
	dial Dial
	// turn is full from the begin of a dial until its request has a connection.
	turn     chan struct{}
	handOver time.Duration
}

// New returns a Dialer that dials by dial.
func New(dial Dial) *Dialer { return &Dialer{dial, make(chan struct{}, 1), defaultHandOver} }

// Wrap returns a transport that sends requests by base, whose DialContext is that of d. It
// must be the innermost layer: only base may repeat a request.
func (d *Dialer) Wrap(base http.RoundTripper) http.RoundTripper { return &transport{base} }

// DialContext makes a connection for the request of ctx. It waits while another request makes
// one, and fails if that connection serves this request too.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	r, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		return d.dial(ctx, network, address)
	}
	served := r.current()
	mine, err := d.await(ctx, served)
	if err != nil {
		return nil, err
	}
	conn, err := d.dial(ctx, network, address)
	if mine && (err != nil || !r.whenServed(served, d.release)) {
		d.release()
	}
	return conn, err
}

func (d *Dialer) release() { <-d.turn }

// await waits for the turn, and returns whether it has it. The error says that the request
// is served.
func (d *Dialer) await(ctx context.Context, served <-chan struct{}) (mine bool, err error) {
	select {
	case d.turn <- struct{}{}:
		return true, nil // nobody dials
	default:
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case d.turn <- struct{}{}:
	case <-timer.C:
		return false, nil
	case <-served:
		return false, errNotNeeded
	case <-ctx.Done():
		return false, ctx.Err()
	}
	// The request before has its connection, which may soon serve this request too.
	timer.Reset(d.handOver)
	select {
	case <-timer.C:
		return true, nil
	case <-served:
		d.release()
		return false, errNotNeeded
	}
}

type requestKey struct{}

// request is one that needs a connection. mu guards everything.
type request struct {
	mu sync.Mutex
	// served is closed when the request has a connection, or needs none any more; a request
	// that the transport repeats gets another channel.
	served chan struct{}
	closed bool
	// release is called at that moment, nil for nothing.
	release func()
}

func (r *request) current() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// whenServed has release called when the channel served is closed, and returns false if it
// is closed already.
func (r *request) whenServed(served <-chan struct{}, release func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.served != served || r.closed {
		return false
	}
	r.release = release
	return true
}

// needs begins another search for a connection.
func (r *request) needs() {
	r.done()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.served, r.closed = make(chan struct{}), false
}

// done ends the search for a connection.
func (r *request) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		close(r.served)
	}
	if r.release != nil {
		r.release()
		r.release = nil
	}
}

type transport struct{ base http.RoundTripper }

// WrappedRoundTripper lets client-go find the transport below.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.base }

// RoundTrip sends one request, and follows its search for a connection.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	r := &request{served: make(chan struct{})}
	defer r.done()
	ctx := context.WithValue(req.Context(), requestKey{}, r)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { r.needs() },
		GotConn: func(httptrace.GotConnInfo) { r.done() },
	})
	return t.base.RoundTrip(req.WithContext(ctx))
}
