package main

import (
	"container/list"
	"net"
	"sync"
)

// maxConnections is how many connections one address holds. Nobody authenticates there, and the plugin's
// container has no limit on memory.
const maxConnections = 512

// boundedListener closes the oldest connection for one that is too many. Whoever holds connections thus
// keeps nobody out: the kubelet's probe takes a moment, and its connection is the newest. It is safe for
// concurrent use.
type boundedListener struct {
	net.Listener

	mu sync.Mutex
	// open has the connections, the oldest first.
	open list.List
}

// Accept returns the next connection.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	newest := &boundedConn{Conn: conn, listener: l}
	if oldest := l.add(newest); oldest != nil {
		_ = oldest.Conn.Close() // its reader and its writer end with errors
	}
	return newest, nil
}

// add notes a connection, and returns the one that goes for it, if one must.
func (l *boundedListener) add(conn *boundedConn) (oldest *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open.Len() >= maxConnections {
		oldest, _ = l.open.Remove(l.open.Front()).(*boundedConn)
	}
	conn.place = l.open.PushBack(conn)
	return oldest
}

// boundedConn is a connection of a boundedListener.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	place    *list.Element
}

// Close gives the connection's place back.
func (c *boundedConn) Close() error {
	c.listener.mu.Lock()
	c.listener.open.Remove(c.place) // which does nothing once it is gone
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
