package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/process"
)

// subject is a process that is looked at from outside: the plugin, or a reference.
type subject struct {
	pid int
	// client reaches what the process serves at host.
	client *http.Client
	host   string
	// kill ends the process. It may be called again.
	kill func() error
}

// newReference starts a process of the reference program, which follows the first count ConfigMaps, and opens so many
// watches at once; 0: all. It ends with the scenario, if not before. The name is unique in the lab.
func (l *lab) newReference(name string, count, opening int, more ...string) *subject {
	socket := filepath.Join(l.dir, name+".sock")
	p := must(process.Start(process.Options{
		Path: l.bench.reference, Log: filepath.Join(l.dir, name+".log"),
		Args: append([]string{"-kubeconfig", l.kubeconfig, "-opening", strconv.Itoa(opening), "-count", strconv.Itoa(count), "-listen", socket}, more...),
	}))
	l.onEnd(p.Kill)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	return &subject{p.PID(), &http.Client{Transport: transport}, "reference", p.Kill}
}

// arrivals returns when each of the first objects came into the state that want has for it, or a later one. missing
// is how many have not. The process is a reference.
func (s *subject) arrivals(ctx context.Context, want []int) (at []time.Time, missing int, err error) {
	text, err := s.get(ctx, "/states")
	if err != nil {
		return nil, 0, fmt.Errorf("ask the reference: %w", err)
	}
	var known map[string]struct {
		State string
		At    int64 // nanoseconds of Unix time
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return nil, 0, fmt.Errorf("read the reference's answer: %w", err)
	}
	for i, least := range want {
		k := known[objectName(i)]
		if number, err := strconv.Atoi(k.State); err != nil || number < least {
			missing++
			continue
		}
		at = append(at, time.Unix(0, k.At))
	}
	return at, missing, nil
}

func (s *subject) get(ctx context.Context, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.host+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New("GET " + path + ": " + response.Status)
	}
	return body, err
}

// settle collects the process's garbage until it has given back what it gives back, and returns the bytes of memory
// that it holds.
func (s *subject) settle(ctx context.Context) (resident float64) {
	const within = 0.005
	fatal(harness.Poll(ctx, time.Minute, time.Second, func() (err error) {
		defer catch(&err)
		must(s.get(ctx, "/debug/pprof/heap?gc=1"))
		before, now := resident, must(stat(s.pid))
		if resident = float64(now.ResidentMemory()); math.Abs(before-resident) > within*resident {
			err = fmt.Errorf("the memory of process %d does not settle: %.0f bytes", s.pid, resident)
		}
		return err
	}))
	return resident
}

// number returns what the group of a pattern matches in what the process serves.
func (s *subject) number(ctx context.Context, path, pattern string) float64 {
	found := regexp.MustCompile(pattern).FindSubmatch(must(s.get(ctx, path)))
	if found == nil {
		fatal(fmt.Errorf("%s has nothing that is like %s", path, pattern))
	}
	return must(strconv.ParseFloat(string(found[1]), 64))
}

func stat(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

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

func (l *lab) newHandshakes() *handshakes {
	const endsOfTCPv4 = 1 << 0 // SKNLGRP_INET_TCP_DESTROY
	conn := must(netlink.Dial(unix.NETLINK_SOCK_DIAG, &netlink.Config{Groups: endsOfTCPv4}))
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
	fatal(conn.SetReadBuffer(16 << 20))
	return h
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
func (h *handshakes) begun() float64 {
	living := connectionsTo(h.port)
	h.mu.Lock()
	defer h.mu.Unlock()
	fatal(h.err)
	return float64(h.ended) + living
}

// connectionsTo returns how many clients' connections to a port there are in this process's network namespace.
func connectionsTo(port uint16) (n float64) {
	proc := must(procfs.NewDefaultFS())
	sockets := must(proc.NetTCP()) //nolint:staticcheck // What is to replace it is a netlink socket and a parser of one's own.
	const established, closeWait = 1, 8
	for _, s := range sockets {
		// One that no process holds has no inode.
		if s.Inode != 0 && s.RemPort == uint64(port) && (s.St == established || s.St == closeWait) {
			n++
		}
	}
	return n
}
