package faultproxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// network is a listener that closes and opens again on one address, and the connections
// that it accepted.
//
// mu guards everything below it.
type network struct {
	// address is host and port. The host is one of the many of the loopback network, so
	// that nobody takes the port while the listener is closed.
	address string

	mu       sync.Mutex
	listener net.Listener
	conns    map[*conn]struct{}
	accepted int
	// deaf makes each new connection swallow everything, cut resets it.
	deaf, cut bool
	// open is closed while bytes may pass.
	open chan struct{}
}

// newNetwork returns a network that listens on an address of its own.
func newNetwork() (*network, error) {
	n := &network{conns: make(map[*conn]struct{}), open: make(chan struct{})}
	close(n.open)
	n.address = fmt.Sprintf("127.%d.%d.%d:0", 64+rand.N(64), rand.N(256), 1+rand.N(254))
	if _, err := n.listen(); err != nil {
		return nil, err
	}
	n.address = n.listener.Addr().String()
	return n, nil
}

// listen opens the listener; it returns nil if it is open already.
func (n *network) listen() (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener != nil {
		return nil, nil
	}
	l, err := net.Listen("tcp", n.address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	n.listener = &listener{Listener: l, network: n}
	return n.listener, nil
}

// refuse closes the listener.
func (n *network) refuse() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listener == nil {
		return nil
	}
	l := n.listener
	n.listener = nil
	return l.Close()
}

// reset ends every connection as a crash of the machine's process does, with a RST.
func (n *network) reset() {
	n.mu.Lock()
	all := make([]*conn, 0, len(n.conns))
	for c := range n.conns {
		all = append(all, c)
	}
	n.mu.Unlock()
	for _, c := range all {
		sendReset(c.Conn)
		_ = c.Close()
	}
}

// sendReset has the next Close of a connection send a RST.
func sendReset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// cutNew has each new connection be reset, or no longer.
func (n *network) cutNew(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
}

// swallow makes all connections deaf for good, and new ones until hear.
func (n *network) swallow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = true
	for c := range n.conns {
		c.deafen()
	}
}

// hear lets new connections work again.
func (n *network) hear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deaf = false
}

// hold stops all bytes until release.
func (n *network) hold() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = make(chan struct{})
}

func (n *network) release() {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.open:
	default:
		close(n.open)
	}
}

func (n *network) gate() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.open
}

// add takes a new connection; it returns nil if that is to be reset.
func (n *network) add(raw net.Conn) *conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accepted++
	if n.cut {
		return nil
	}
	c := &conn{Conn: raw, network: n, deaf: make(chan struct{}), closed: make(chan struct{})}
	n.conns[c] = struct{}{}
	if n.deaf {
		c.deafen()
	}
	return c
}

func (n *network) remove(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
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
		if c := l.network.add(raw); c != nil {
			return c, nil
		}
		sendReset(raw)
		_ = raw.Close()
	}
}

// Close stops listening; calling it again does nothing: the server closes its listeners
// too.
func (l *listener) Close() error {
	if err := l.Listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// conn is one connection. Read and Write are for one goroutine each, Close for all.
type conn struct {
	net.Conn
	network *network
	once    sync.Once
	closed  chan struct{}

	deafOnce sync.Once
	deaf     chan struct{}
}

func (c *conn) deafen() { c.deafOnce.Do(func() { close(c.deaf) }) }

func (c *conn) isDeaf() bool {
	select {
	case <-c.deaf:
		return true
	default:
		return false
	}
}

// Read returns what the client sent, after a hold if there is one. A deaf connection's
// returns when the client closes it only.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if !c.pass() {
			return 0, net.ErrClosed
		}
		if err != nil || !c.isDeaf() {
			return n, err
		}
	}
}

// Write sends p after a hold if there is one. A deaf connection drops it.
func (c *conn) Write(p []byte) (int, error) {
	if !c.pass() {
		return 0, net.ErrClosed
	}
	if c.isDeaf() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// pass waits until bytes may pass; it returns false if c was closed meanwhile.
func (c *conn) pass() bool {
	select {
	case <-c.network.gate():
		return true
	case <-c.closed:
		return false
	}
}

// Close ends the connection; calling it again does nothing.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		close(c.closed)
		c.network.remove(c)
		err = c.Conn.Close()
	})
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
