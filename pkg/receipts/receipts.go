// Package receipts tells which files of a file system other processes open. It asks the kernel, by fanotify.
//
// It owns the process's fanotify group, the marks in it, and what their events belong to. It must not know what the
// files are for, where receipts are kept, or whose files they are. It keeps no descriptor of a watched file system,
// and marks go with their file system, so neither hinders an unmount.
//
// An open counts whichever mount, path or namespace it goes through. What opens nothing does not count: stat, a listing,
// O_PATH, reads of an open descriptor. Who opened a file can't be told. The kernel notes an open before open(2) returns, so
// whatever is read through the descriptor is read after its event.
package receipts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupFlags has events name a file by its handle.
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_UNLIMITED_MARKS | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

	// pause is the time between two reads. Equal events merge in the queue: who opens a file in a loop is reported five times
	// a second instead of fifty thousand. Nobody sleeps on the group meanwhile, whom each first open would have to wake.
	pause = 200 * time.Millisecond
	// bufferSize is room for a thousand events. The longest has 44 bytes and a handle of 128.
	bufferSize, maxEvent = 64 << 10, 256
)

// Group is a fanotify group. It is safe for concurrent use, and must be closed.
//
// It has no goroutine of its own: Run is the caller's, and ends with its context. Run and Drain call the callbacks, and hold
// mu meanwhile. So no callback may block, call the Group, or take a lock that is held around calls of it.
type Group struct {
	pid      int32
	overflow func()

	mu      sync.Mutex
	fd      int               // -1 once it is closed
	watches map[string]*watch // by file system
	buffer  []byte
}

type watch struct{ opened func(files []string) }

// New makes a group. It calls overflow when opens may have been lost, of any file. The error says what the kernel refused
// and, as far as that can be told, why.
func New(overflow func()) (*Group, error) {
	// A queue with a limit loses the events of one volume when the readers of another fill it.
	return newGroup(groupFlags|unix.FAN_UNLIMITED_QUEUE, overflow)
}

func newGroup(flags uint, overflow func()) (*Group, error) {
	fd, err := unix.FanotifyInit(flags, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, explain("make a fanotify group", err)
	}
	return &Group{
		pid: int32(os.Getpid()), overflow: overflow, fd: fd,
		watches: make(map[string]*watch), buffer: make([]byte, bufferSize),
	}, nil
}

// Close ends the group, and with it all marks.
func (g *Group) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	fd := g.fd
	g.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// Run reports opens until ctx ends, and then returns nil. An error, after which nothing is reported any more, comes after a
// call of overflow.
func (g *Group) Run(ctx context.Context) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := g.Drain(); err != nil {
			return err
		}
	}
}

// Drain reports all opens until now before it returns. So what is reported later was opened later: who rewrites a file in
// place and then drains knows which opens may have been of the old content.
func (g *Group) Drain() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	opened, lost := make(map[*watch]map[string]bool), false
	for n := len(g.buffer); err == nil && n > len(g.buffer)-maxEvent; { // else the queue was empty for a moment
		n, err = unix.Read(g.fd, g.buffer)
		if n = max(n, 0); errors.Is(err, unix.EAGAIN) {
			err = nil
		} else if err != nil {
			err = fmt.Errorf("read the fanotify group: %w", err)
		}
		for rest := g.buffer[:n]; len(rest) > 0 && err == nil; {
			var e event
			if e, rest, err = next(rest); err == nil {
				lost = lost || e.lost()
				g.note(opened, e)
			}
		}
	}
	for w, files := range opened {
		ids := make([]string, 0, len(files))
		for id := range files {
			ids = append(ids, id)
		}
		w.opened(ids)
	}
	if lost || err != nil {
		g.overflow()
	}
	return err
}

// note adds an event to what was opened. The event of a file system that is not watched any more is late.
func (g *Group) note(opened map[*watch]map[string]bool, e event) {
	w := g.watches[string(e.fs)]
	if w == nil || e.mask&unix.FAN_OPEN == 0 || e.pid == g.pid {
		return
	}
	if opened[w] == nil {
		opened[w] = make(map[string]bool)
	}
	opened[w][string(e.file)] = true
}

// Watch reports opens of the files of the file system that dir is of, from now on until it is unmounted or stop is called. It
// calls opened with the IDs of files that other processes have opened, for a file that is not ignored again and again. The
// Group's comment says what opened may do. dir is a descriptor, not of O_PATH, and needed no longer than for the call. A file
// system has one watch: the last one.
func (g *Group) Watch(dir int, opened func(files []string)) (stop func(), err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return nil, fmt.Errorf("watch a file system: statfs: %w", err)
	}
	fs := binary.NativeEndian.AppendUint32(nil, uint32(st.Fsid.Val[0]))
	fs = binary.NativeEndian.AppendUint32(fs, uint32(st.Fsid.Val[1]))
	g.mu.Lock() // until it is known whose the mark's events are
	defer g.mu.Unlock()
	if err := g.mark("watch a file system", unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, dir); err != nil {
		return nil, err
	}
	w := &watch{opened}
	g.watches[string(fs)] = w
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.watches[string(fs)] == w {
			delete(g.watches, string(fs))
		}
	}, nil
}

// ID returns what names a file in reports: a handle that it has as long as it exists, and no later one of its file system
// gets. path is relative to the directory; "" is for dir itself, which is any descriptor then.
func (*Group) ID(dir int, path string) (string, error) {
	flags := 0
	if path == "" {
		flags = unix.AT_EMPTY_PATH
	}
	handle, _, err := unix.NameToHandleAt(dir, path, flags)
	if err != nil {
		return "", fmt.Errorf("name_to_handle_at: %w", err)
	}
	k := binary.NativeEndian.AppendUint32(nil, uint32(handle.Type()))
	return string(append(k, handle.Bytes()...)), nil
}

// Ignore ends the reports of a file, by whichever of its links it is opened, until Listen. file is a descriptor, not of
// O_PATH.
func (g *Group) Ignore(file int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mark("ignore a file", unix.FAN_MARK_ADD|unix.FAN_MARK_IGNORE_SURV, file)
}

// Listen undoes Ignore.
func (g *Group) Listen(file int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mark("listen to a file", unix.FAN_MARK_REMOVE|unix.FAN_MARK_IGNORE_SURV, file)
}

// mark changes a mark; it is no error that one to remove is not there.
func (g *Group) mark(what string, flags uint, of int) error {
	err := unix.FanotifyMark(g.fd, flags, unix.FAN_OPEN, of, "")
	if err == nil || flags&unix.FAN_MARK_REMOVE != 0 && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return explain(what+": fanotify_mark", err)
}
