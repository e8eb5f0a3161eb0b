package faults

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// fault is one way in which connections to the API server are bad. internal/simulation has the faults that need no socket.
type fault string

const (
	noFault fault = "none"
	// refusedConns closes the listener and resets all connections.
	refusedConns fault = "refused"
	// cutConns resets all connections, and each new one at once, as a load balancer without a server does.
	cutConns fault = "cut"
	// halfOpenConns swallows what comes and goes on every connection. Those that it has hit stay deaf after it.
	halfOpenConns fault = "half-open"
	// heldConns holds up all bytes of all connections, and passes them on after it.
	heldConns fault = "held"
)

// proxy stands between a plugin and the API server, and breaks connections.
type proxy struct {
	t *testing.T
	// target is the API server's host and port.
	target  string
	serving sync.WaitGroup
	// hold is locked while no bytes may pass.
	hold sync.RWMutex

	// mu guards what is below it.
	mu    sync.Mutex
	fault fault
	// address is host and port. The host is one of the many of the loopback network, so that nobody takes the port while the listener is closed.
	address  string
	listener net.Listener
	conns    map[*proxiedConn]bool
}

// newProxied starts a plugin behind a proxy. The log has each request that failed, but no bodies, as these tests may run for long.
func newProxied(t *testing.T, args ...string) (*world.Node, *proxy) {
	t.Helper()
	config := must.Get(clientcmd.LoadFromFile(lab.Kubeconfig))(t)
	p := &proxy{t: t, conns: map[*proxiedConn]bool{}}
	for _, cluster := range config.Clusters { // there is one
		target := must.Get(url.Parse(cluster.Server))(t)
		p.target, cluster.TLSServerName = target.Host, cmp.Or(cluster.TLSServerName, target.Hostname())
		p.inject(noFault)
		cluster.Server = "https://" + p.address
	}
	t.Cleanup(func() {
		p.inject(refusedConns)
		p.serving.Wait()
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, kubeconfig))
	return lab.NewNodeAs(t, kubeconfig, append([]string{"-v=4"}, args...)...), p
}

// inject ends the fault that is on and begins f.
func (p *proxy) inject(f fault) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == heldConns {
		p.hold.Unlock()
	}
	p.fault = f
	switch {
	case f == refusedConns && p.listener != nil:
		must.Do(p.t, p.listener.Close())
		p.listener = nil
	case f != refusedConns && p.listener == nil:
		p.address = cmp.Or(p.address, fmt.Sprintf("127.%d.%d.%d:0", 64+rand.N(64), rand.N(256), 1+rand.N(254)))
		l := must.Get(net.Listen("tcp", p.address))(p.t)
		p.listener, p.address = l, l.Addr().String()
		p.serving.Go(func() { p.accept(l) })
	}
	for c := range p.conns {
		switch f {
		case refusedConns, cutConns:
			c.reset()
		case halfOpenConns:
			c.deaf.Store(true)
		}
	}
	if f == heldConns {
		p.hold.Lock()
	}
}

// accept takes connections until the listener is closed.
func (p *proxy) accept(l net.Listener) {
	for {
		accepted, err := l.Accept()
		if err != nil {
			return
		}
		c := &proxiedConn{Conn: accepted, proxy: p}
		p.mu.Lock()
		if p.fault == refusedConns || p.fault == cutConns {
			c.reset()
		} else {
			c.deaf.Store(p.fault == halfOpenConns)
			p.conns[c] = true
			p.serving.Go(func() { p.pass(c) })
		}
		p.mu.Unlock()
	}
}

// pass copies between a plugin and the API server until one of them ends the connection.
func (p *proxy) pass(c *proxiedConn) {
	server, err := (&net.Dialer{}).DialContext(p.t.Context(), "tcp", p.target)
	if err == nil {
		p.serving.Go(func() {
			_, _ = io.Copy(server, c)
			_ = server.Close()
		})
		_, _ = io.Copy(c, server)
		_ = server.Close()
	}
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// proxiedConn is the plugin's end of a connection.
type proxiedConn struct {
	net.Conn
	proxy *proxy
	deaf  atomic.Bool
}

// isDeaf waits until bytes may pass, and says whether they are dropped.
func (c *proxiedConn) isDeaf() bool {
	c.proxy.hold.RLock()
	defer c.proxy.hold.RUnlock()
	return c.deaf.Load()
}

// Read returns what the plugin sent. A deaf connection's returns when the plugin closes it only.
func (c *proxiedConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if !c.isDeaf() || err != nil {
			return n, err
		}
	}
}

// Write sends b. A deaf connection drops it.
func (c *proxiedConn) Write(b []byte) (int, error) {
	if c.isDeaf() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *proxiedConn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
