package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// handshakes counts the connections to a port on which the client has sent something, and
// so has begun a TLS handshake. The kernel tells of each socket that ends (sock_diag's
// group of IPv4 TCP sockets), and what was sent over it; those that live are in /proc. So
// nothing stands between client and server, and no connection is too short to be counted.
//
// Its one goroutine ends with close. mu guards the fields below it.
type handshakes struct {
	port   uint16
	socket *os.File
	done   chan struct{}

	mu sync.Mutex
	// ended counts those whose socket is gone.
	ended int
	err   error
}

// newHandshakes begins to count. The caller closes it.
func newHandshakes(port uint16) (*handshakes, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	h := &handshakes{port: port, socket: os.NewFile(uintptr(fd), "sock_diag"), done: make(chan struct{})}
	if err := listenToEnds(fd, port); err != nil {
		return nil, errors.Join(err, h.socket.Close())
	}
	go h.run()
	return h, nil
}

// Offsets in a message: a header, then the kernel's struct inet_diag_msg, then attributes.
const (
	diagBegin      = unix.SizeofNlMsghdr
	diagRemotePort = diagBegin + 6
	diagAttributes = diagBegin + 72
	// attributeInfo is INET_DIAG_INFO, whose value is a struct tcp_info.
	attributeInfo = 2
)

// listenToEnds has the socket receive a message for each end of a client's socket.
func listenToEnds(fd int, port uint16) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: diagRemotePort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", err)
	}
	// Thousands may end at once. Root can have more room than others.
	const room = 16 << 20
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, room); err != nil {
			return os.NewSyscallError("setsockopt SO_RCVBUF", err)
		}
	}
	const endsOfTCPv4 = 1 << 0 // SKNLGRP_INET_TCP_DESTROY
	return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: endsOfTCPv4}))
}

func (h *handshakes) run() {
	defer close(h.done)
	buf := make([]byte, 64<<10)
	for {
		n, err := h.socket.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		begun := false
		if err == nil {
			begun, err = handshakeBegun(buf[:n])
		}
		h.mu.Lock()
		if begun {
			h.ended++
		}
		if err != nil {
			h.err = fmt.Errorf("count handshakes: %w", err)
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
	}
}

// handshakeBegun tells whether the peer got something of the socket that a message is of.
func handshakeBegun(message []byte) (bool, error) {
	if len(message) < diagAttributes {
		return false, fmt.Errorf("a message of %d bytes", len(message))
	}
	const header = 4
	for rest := message[diagAttributes:]; len(rest) >= header; {
		length, kind := int(binary.NativeEndian.Uint16(rest)), binary.NativeEndian.Uint16(rest[2:])
		if length < header || length > len(rest) {
			return false, fmt.Errorf("an attribute of %d bytes in %d", length, len(rest))
		}
		if kind == attributeInfo {
			var info unix.TCPInfo
			copy(unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info)), rest[header:length])
			// Begin and end of a connection count as a byte each.
			return info.Bytes_acked > 2, nil
		}
		const aligned = 4
		rest = rest[min((length+aligned-1)/aligned*aligned, len(rest)):]
	}
	return false, errors.New("a message without struct tcp_info")
}

// begun is how many were begun since newHandshakes, or lived then.
func (h *handshakes) begun() (int, error) {
	sockets, err := tcpSockets()
	living := 0
	for _, s := range sockets {
		if s.Inode != 0 && s.RemPort == uint64(h.port) && (s.St == established || s.St == closeWait) {
			living++
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ended + living, errors.Join(err, h.err)
}

func (h *handshakes) close() error {
	err := h.socket.Close()
	<-h.done
	return err
}
