package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// residentBytes returns what a process holds of the machine's memory.
func residentBytes(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no memory", pid)
}

// processorTime returns how long all threads of a process were on a processor, those that
// have ended among them.
func processorTime(pid int) (time.Duration, error) {
	// The id of the clock is what clock_getcpuclockid makes of a process id; the 2 is
	// the scheduler's own count of nanoseconds.
	clock := int32(^pid)<<3 | 2
	var spent unix.Timespec
	if err := unix.ClockGettime(clock, &spent); err != nil {
		return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
	}
	return time.Duration(spent.Nano()), nil
}

// connections returns how many established TCP connections a process holds.
func connections(pid int) (int, error) {
	sockets, err := establishedSockets(pid)
	if err != nil {
		return 0, err
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, e := range entries {
		// One that was closed meanwhile has no target, and is none.
		target, _ := os.Readlink(dir + "/" + e.Name())
		if inode, ok := strings.CutPrefix(target, "socket:["); ok && sockets[strings.TrimSuffix(inode, "]")] {
			n++
		}
	}
	return n, nil
}

// establishedSockets returns the inodes of the established TCP sockets in the network
// namespace of a process.
func establishedSockets(pid int) (map[string]bool, error) {
	inodes := map[string]bool{}
	err := eachSocket(pid, func(s tcpSocket) {
		if s.state == established {
			inodes[s.inode] = true
		}
	})
	return inodes, err
}

// tcpSocket is a line of /proc/net/tcp.
type tcpSocket struct {
	// remote is the peer's address and port, in hexadecimal.
	remote, state string
	// inode is 0 of a socket that no process holds.
	inode string
}

// established and closeWait are states of sockets; the peer has closed the latter.
const established, closeWait = "01", "08"

// eachSocket calls f with the TCP sockets in the network namespace of a process.
func eachSocket(pid int, f func(tcpSocket)) error {
	for _, family := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, family))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			const remote, state, inode = 2, 3, 9
			if fields := strings.Fields(line); len(fields) > inode {
				f(tcpSocket{remote: fields[remote], state: fields[state], inode: fields[inode]})
			}
		}
	}
	return nil
}
