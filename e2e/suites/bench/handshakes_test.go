package main

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestHandshakes has connections that end and one that stays, on which something is sent,
// one without, and ones to other ports.
func TestHandshakes(t *testing.T) {
	server, other := echo(t), echo(t)
	h, err := newHandshakes(uint16(server.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := h.close(); err != nil {
			t.Error(err)
		}
	}()
	const begun = 300
	for range begun - 1 {
		say(t, server, "hello").Close()
	}
	defer say(t, server, "hello").Close()
	say(t, server, "").Close()
	say(t, other, "hello").Close()
	harness.Eventually(t, 10*time.Second, func() error {
		n, err := h.begun()
		if err == nil && n != begun {
			err = fmt.Errorf("%d handshakes, want %d", n, begun)
		}
		return err
	})
}

// echo serves until the test ends.
func echo(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				// io.Copy would leave the pipes of its splices behind.
				var buf [16]byte
				for {
					n, err := c.Read(buf[:])
					if err != nil {
						return // the client has closed
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr)
}

// say sends something over a new connection, and waits for the answer.
func say(t *testing.T, to *net.TCPAddr, what string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTCP("tcp4", nil, to)
	if err == nil {
		_, err = io.WriteString(c, what)
	}
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, len(what)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}
