package faultproxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
)

// network is a listener that closes and opens again on one address, and the connections that it accepted.
type network struct {
	// address is host and port. The host is one of the many of the loopback network, so that nobody takes the port
	// while the listener is closed.
	address string
	// hold is locked while no bytes may pass.
	hold  sync.RWMutex
	conns sync.Map // of *conn

	// mu guards what is below it.
	mu       sync.Mutex
	fault    Fault
	listener net.Listener
}

// inject ends the fault that is on and begins f. It returns the listener if that is another one.
func (n *network) inject(f Fault) (opened net.Listener, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fault == Partition {
		n.hold.Unlock()
	}
	n.fault = f
	switch {
	case f == Refused && n.listener != nil:
		err = n.listener.Close()
		n.listener = nil
	case f != Refused && n.listener == nil:
		if n.address == "" {
			n.address = fmt.Sprintf("127.%d.%d.%d:0", 64+rand.N(64), rand.N(256), 1+rand.N(254))
		}
		l, err := net.Listen("tcp", n.address)
		if err != nil {
			return nil, fmt.Errorf("listen: %w", err)
		}
		n.address = l.Addr().String()
		n.listener = &listener{Listener: l, network: n}
		opened = n.listener
	}
	switch f {
	case Refused, Cut:
		n.reset()
	case HalfOpen:
		n.each(func(c *conn) { c.deaf.Store(true) })
	case Partition:
		n.hold.Lock()
	}
	return opened, err
}

// reset ends every connection as a crash does, with a RST.
func (n *network) reset() { n.each((*conn).reset) }

func (n *network) each(do func(*conn)) {
	n.conns.Range(func(key, _ any) bool {
		if c, ok := key.(*conn); ok {
			do(c)
		}
		return true
	})
}

// listener hands each connection to its network, or resets it.
type listener struct {
	net.Listener
	network *network
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, network: l.network}
		l.network.mu.Lock()
		fault := l.network.fault
		l.network.conns.Store(c, nil)
		c.deaf.Store(fault == HalfOpen)
		l.network.mu.Unlock()
		if fault != Cut && fault != Refused {
			return c, nil
		}
		c.reset()
	}
}

// Close stops listening; the server does it too.
func (l *listener) Close() error {
	if err := l.Listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// conn is one connection.
type conn struct {
	net.Conn
	network *network
	deaf    atomic.Bool
}

// pass waits until bytes may pass.
func (c *conn) pass() {
	c.network.hold.RLock()
	defer c.network.hold.RUnlock()
}

// Read returns what the client sent. A deaf connection's returns when the client closes it only.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		c.pass()
		if err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// Write sends p. A deaf connection drops it.
func (c *conn) Write(p []byte) (int, error) {
	c.pass()
	if c.deaf.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Close ends the connection; calling it again does nothing.
func (c *conn) Close() error {
	c.network.conns.Delete(c)
	if err := c.Conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
