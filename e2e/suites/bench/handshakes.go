package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// handshakes counts the connections to a port on which the client has sent something, and so has begun a TLS
// handshake. The kernel tells of each socket that ends, and what was sent over it; those that live are in /proc. So
// nothing stands between client and server, and no connection is too short to be counted.
type handshakes struct {
	port uint16
	conn *netlink.Conn

	mu    sync.Mutex
	ended int // whose socket is gone
	err   error
}

func (l *lab) newHandshakes() (*handshakes, error) {
	const endsOfTCPv4 = 1 << 0 // SKNLGRP_INET_TCP_DESTROY
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{Groups: endsOfTCPv4})
	if err != nil {
		return nil, fmt.Errorf("listen to the ends of sockets: %w", err)
	}
	h, done := &handshakes{port: l.Port(), conn: conn}, make(chan struct{})
	go func() {
		defer close(done)
		for h.receive() {
		}
	}()
	l.onEnd(func() error {
		err := conn.Close()
		<-done
		return err
	})
	// Thousands may end at once. What has no room is an error.
	return h, conn.SetReadBuffer(16 << 20)
}

func (h *handshakes) receive() bool {
	messages, err := h.conn.Receive()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		begun, bad := h.begunOn(m.Data)
		if begun {
			h.ended++
		}
		err = errors.Join(err, bad)
	}
	if err != nil {
		h.err = fmt.Errorf("count handshakes: %w", err)
	}
	return err == nil
}

// begunOn tells whether the port's server got something over the socket that a message is of: the kernel's struct
// inet_diag_msg, then attributes.
func (h *handshakes) begunOn(message []byte) (bool, error) {
	const remotePort, attributes, attributeInfo = 6, 72, 2
	if len(message) < attributes {
		return false, fmt.Errorf("a message of %d bytes", len(message))
	}
	if binary.BigEndian.Uint16(message[remotePort:]) != h.port {
		return false, nil
	}
	all, err := netlink.NewAttributeDecoder(message[attributes:])
	if err != nil {
		return false, err
	}
	for all.Next() {
		if all.Type() == attributeInfo {
			var info unix.TCPInfo
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), all.Bytes())
			// Begin and end of a connection count as a byte each.
			return info.Bytes_acked > 2, nil
		}
	}
	return false, errors.Join(errors.New("a message without struct tcp_info"), all.Err())
}

// begun is how many were begun since newHandshakes, or lived then.
func (h *handshakes) begun() (float64, error) {
	living, err := connectionsTo(h.port)
	h.mu.Lock()
	defer h.mu.Unlock()
	return float64(h.ended) + living, errors.Join(err, h.err)
}

// connectionsTo returns how many clients' connections to a port there are in this process's network namespace.
func connectionsTo(port uint16) (n float64, err error) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	sockets, err := proc.NetTCP() //nolint:staticcheck // What is to replace it is a netlink socket and a parser of one's own.
	const established, closeWait = 1, 8
	for _, s := range sockets {
		// One that no process holds has no inode.
		if s.Inode != 0 && s.RemPort == uint64(port) && (s.St == established || s.St == closeWait) {
			n++
		}
	}
	return n, err
}
