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
	// dialTime is how long a dial may keep the other requests of its client from dialling.
	dialTime = 5 * time.Second
	// settleTime is how long after a request has its new connection the next may dial: net/http hands a connection of HTTP/2
	// to all that wait for one, and the request that dialled is the first to know.
	settleTime = 20 * time.Millisecond
)

// errNotNeeded ends a dial for a request that has another connection by now, or has ended: nobody sees it.
var errNotNeeded = errors.New("another connection serves the request")

// Dial makes a connection, as net.Dialer.DialContext does.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// OneAtATime returns a dial for one client: one of its requests at a time makes a connection, for 5 seconds at most, and the
// others wait until they have that one, or it is their turn. net/http alone makes a connection for each request that finds
// none, and one of HTTP/2 serves a hundred. A request that finds a live connection doesn't come here.
func OneAtATime(dial Dial) Dial {
	turn := make(chan struct{}, 1)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		found, ok := ctx.Value(foundKey{}).(context.Context)
		if !ok {
			return dial(ctx, network, address)
		}
		served := found.Done()
		if found.Err() != nil {
			served = nil // net/http sends a request again whose connection has ended
		}
		select {
		case turn <- struct{}{}:
		case <-served:
			return nil, errNotNeeded
		}
		release := sync.OnceFunc(func() { <-turn })
		time.AfterFunc(dialTime, release)
		context.AfterFunc(found, func() { time.AfterFunc(settleTime, release) })
		conn, err := dial(ctx, network, address)
		if err != nil {
			release()
		}
		return conn, err
	}
}

type foundKey struct{}

// lookForConnection returns a context for a request of a client, which tells OneAtATime when the request has a connection.
// has says whether it ever had one. The caller calls ended at the end of the request.
func lookForConnection(ctx context.Context) (of context.Context, has func() bool, ended func()) {
	found, cancel := context.WithCancelCause(context.Background())
	ctx = httptrace.WithClientTrace(context.WithValue(ctx, foundKey{}, found), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { cancel(errNotNeeded) },
	})
	return ctx, func() bool { return errors.Is(context.Cause(found), errNotNeeded) }, func() { cancel(nil) }
}
