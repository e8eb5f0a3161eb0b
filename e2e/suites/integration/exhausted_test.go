package integration

import (
	"golang.org/x/sys/unix"
)

// limitDescriptors sets the soft limit of what the plugin may have open, and returns
// what takes that back; the descriptors that it has stay.
func (n *node) limitDescriptors(to uint64) (lift func()) {
	n.t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &old); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: to, Max: old.Max}, nil); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &old, nil); err != nil {
			n.t.Fatal(err)
		}
	}
}
