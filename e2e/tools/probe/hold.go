package main

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxHeld is how many descriptors a hold keeps of one place.
const maxHeld = 50

// hold keeps files from their writer: what is open takes its room for ever, and who opens a
// file for writing has to wait for the lease of it to end. It is for one goroutine.
type hold struct{ held map[place][]int }

// take opens what is at the place now, with a lease. Where the attacker itself may write it
// would hold up nobody else.
func (h *hold) take(r report, p place) {
	var st unix.Statfs_t
	if len(h.held[p]) >= maxHeld || unix.Statfs(p.Dir, &st) == nil && st.Flags&unix.ST_RDONLY == 0 {
		return
	}
	fd, err := unix.Open(filepath.Join(p.Dir, p.Name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	r.add("hold-open", "", err)
	if err != nil {
		return
	}
	h.held[p] = append(h.held[p], fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	r.add("hold-lease", "", err)
}

// release closes everything.
func (h *hold) release() {
	for _, all := range h.held {
		for _, fd := range all {
			unix.Close(fd)
		}
	}
}
