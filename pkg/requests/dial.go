package requests

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"sync"
	"time"
)

const (
	// dialTimeout is how long a dial may keep the other requests of its client from dialling.
	dialTimeout = 5 * time.Second
	// settleTime is how long after a request has its new connection the next one may dial. net/http gives an HTTP/2 connection to all
	// requests that wait for one, and the request that dialled gets it first.
	settleTime = 20 * time.Millisecond
)

// errNotNeeded ends a dial if the request has another connection by now, or has ended. No caller sees it.
var errNotNeeded = errors.New("another connection serves the request")

// Dial opens a connection, as net.Dialer.DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// OneAtATime returns a dial function for one client. Only one of its requests opens a connection at a time, for at most 5 seconds. The
// others wait until they have that connection, or until it is their turn. Without it, net/http opens a connection for each request that
// finds none, although one HTTP/2 connection serves a hundred requests. The function is not called for a request that finds a live
// connection. It is safe for concurrent use.
func OneAtATime(dial Dial) Dial {
	turn := make(chan struct{}, 1)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		found, ok := ctx.Value(foundKey{}).(context.Context)
		if !ok {
			return dial(ctx, network, address)
		}
		served := found.Done()
		if found.Err() != nil {
			served = nil // net/http sends a request again if its connection has ended
		}
		select {
		case turn <- struct{}{}:
		case <-served:
			return nil, errNotNeeded
		}
		release := sync.OnceFunc(func() { <-turn })
		time.AfterFunc(dialTimeout, release)
		context.AfterFunc(found, func() { time.AfterFunc(settleTime, release) })
		conn, err := dial(ctx, network, address)
		if err != nil {
			release()
		}
		return conn, err
	}
}

type foundKey struct{}

// traceConnection returns a context for a request of a client. OneAtATime sees in it when the request has a connection. has reports whether
// it ever had one. The caller calls ended at the end of the request.
func traceConnection(ctx context.Context) (of context.Context, has func() bool, ended func()) {
	found, cancel := context.WithCancelCause(context.Background())
	ctx = httptrace.WithClientTrace(context.WithValue(ctx, foundKey{}, found), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { cancel(errNotNeeded) },
	})
	return ctx, func() bool { return errors.Is(context.Cause(found), errNotNeeded) }, func() { cancel(nil) }
}
