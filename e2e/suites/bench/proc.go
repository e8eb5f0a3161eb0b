package main

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// residentBytes returns what a process holds of the machine's memory.
func residentBytes(pid int) (float64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return float64(status.VmRSS), err
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

// The states of a socket as the kernel numbers them; the peer has closed the latter.
const established, closeWait = 1, 8

// connections returns how many established TCP connections a process holds.
func connections(pid int) (int, error) {
	sockets, err := tcpSockets()
	if err != nil {
		return 0, err
	}
	inodes := map[string]bool{}
	for _, s := range sockets {
		inodes[fmt.Sprintf("socket:[%d]", s.Inode)] = s.St == established
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	targets, err := p.FileDescriptorTargets()
	n := 0
	for _, target := range targets {
		if inodes[target] {
			n++
		}
	}
	return n, err
}

// tcpSockets returns the TCP sockets in this process's network namespace. The inode is 0 of one
// that no process holds.
func tcpSockets() (procfs.NetTCP, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	four, err := fs.NetTCP() //nolint:staticcheck // What is to replace it is a netlink socket and a parser of one's own.
	if err != nil {
		return nil, err
	}
	six, err := fs.NetTCP6() //nolint:staticcheck // As above.
	return append(four, six...), err
}
