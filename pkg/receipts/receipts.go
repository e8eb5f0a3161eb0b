// Package receipts tells which files of watched directories other processes open. It asks the kernel, by fanotify.
//
// It owns the process's fanotify group, the marks in it, and what their events belong to. It must not know what the
// directories are for, where receipts are kept, or whose files they are. It keeps no descriptor of a watched file system,
// and marks go with their file system, so neither hinders an unmount.
//
// An open counts whichever mount, path or namespace it goes through. What opens nothing does not count: stat, a listing,
// O_PATH, reads of an open descriptor. Who opened a file can't be told. The kernel notes an open before open(2) returns, so
// whatever is read through the descriptor is read after its event.
package receipts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupFlags has events name a directory by its handle, and the file in it.
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_UNLIMITED_MARKS | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK
	// opens are those of the files in a directory; without FAN_ONDIR, opens of directories are none.
	opens = unix.FAN_OPEN | unix.FAN_EVENT_ON_CHILD

	// pause is the time between two reads. Equal events merge in the queue: who opens a file in a loop is reported a
	// hundred times a second instead of fifty thousand.
	pause = 10 * time.Millisecond
	// bufferSize is room for about a thousand events. The longest has 44 bytes, a handle of 128 and a name of 256.
	bufferSize, maxEvent = 64 << 10, 512
)

// Group is a fanotify group. It is safe for concurrent use, and must be closed.
//
// It has no goroutine of its own: Run is the caller's, and ends with its context. Whoever reads events, which is Run, Drain
// or Watch.Add, calls the callbacks, and holds mu meanwhile. So a Watch's callback is not called any more once Stop has
// returned, and no callback may block, call the Group, or take a lock that is held around calls of it.
type Group struct {
	file     *os.File // its descriptor is used through conn only, which knows whether it is closed
	conn     syscall.RawConn
	pid      int32
	overflow func()

	mu     sync.Mutex
	dirs   map[string]directory // by key
	buffer []byte
}

// directory is what the events of a directory belong to.
type directory struct {
	watch *Watch
	path  string
}

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
	g := &Group{
		file: os.NewFile(uintptr(fd), "fanotify"), pid: int32(os.Getpid()), overflow: overflow,
		dirs: make(map[string]directory), buffer: make([]byte, bufferSize),
	}
	if g.conn, err = g.file.SyscallConn(); err == nil {
		err = g.file.SetReadDeadline(time.Time{}) // it fails if Run could not wait for events
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("poll the fanotify group: %w", err), g.file.Close())
	}
	return g, nil
}

// Close ends the group, and with it all marks. Run must have returned.
func (g *Group) Close() error { return g.file.Close() }

// Run reports opens until ctx ends, and then returns nil: an open at once, or 10 ms after the last report. An error, after
// which nothing is reported any more, comes after a call of overflow.
func (g *Group) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = g.file.SetReadDeadline(time.Unix(1, 0)) }) // the past: it ends a wait
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		var n int
		var err error
		waitErr := g.conn.Read(func(uintptr) bool { // it waits whenever it gets false
			n, err = g.Drain()
			return n > 0 || err != nil
		})
		if err = errors.Join(err, waitErr); err != nil && ctx.Err() == nil {
			return err
		}
		timer.Reset(pause)
	}
}

// Drain reports all opens until now before it returns, and how many events they were. So what is reported later was opened
// later: who rewrites a file in place and then drains knows which opens may have been of the old content.
func (g *Group) Drain() (events int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	opened, lost := make(map[*Watch]map[string]bool), false
	for n := len(g.buffer); err == nil && n > len(g.buffer)-maxEvent; { // else the queue was empty for a moment
		n, err = g.read()
		for rest := g.buffer[:n]; len(rest) > 0 && err == nil; events++ {
			var e event
			if e, rest, err = next(rest); err == nil {
				lost = lost || e.lost()
				g.note(opened, e)
			}
		}
	}
	for w, paths := range opened {
		w.opened(slices.Sorted(maps.Keys(paths)))
	}
	if lost || err != nil {
		g.overflow()
	}
	return events, err
}

// read fills the buffer as far as there are events; it does not wait for any.
func (g *Group) read() (n int, err error) {
	closed := g.conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), g.buffer) })
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	if err = errors.Join(closed, err); err != nil {
		return 0, fmt.Errorf("read the fanotify group: %w", err)
	}
	return max(n, 0), nil
}

// note adds an event to what was opened. The event of a directory that is not watched any more is late.
func (g *Group) note(opened map[*Watch]map[string]bool, e event) {
	d, ok := g.dirs[string(e.dir)]
	if !ok || !e.opensFile() || e.pid == g.pid {
		return
	}
	if opened[d.watch] == nil {
		opened[d.watch] = make(map[string]bool)
	}
	opened[d.watch][path.Join(d.path, string(e.name))] = true
}

// Watch is a set of directories whose opens are reported together. It is safe for concurrent use.
type Watch struct {
	group  *Group
	opened func(paths []string)
	keys   []string // guarded by the group's mu
}

// Watch returns a Watch without directories. It calls opened with the paths, sorted, of files that other processes have
// opened, for a file that is not ignored again and again. The Group's comment says what opened may do.
func (g *Group) Watch(opened func(paths []string)) *Watch { return &Watch{group: g, opened: opened} }

// Add reports opens of the files in a directory below path: those from now on, also if it was watched before. dir is
// its descriptor, not of O_PATH, and needed no longer than for the call.
func (w *Watch) Add(dir int, path string) error {
	k, err := key(dir)
	if err == nil {
		_, err = w.group.Drain() // late events of the same directory are not this Watch's
	}
	if err != nil {
		return fmt.Errorf("watch %q: %w", path, err)
	}
	w.group.mu.Lock() // until it is known whose the mark's events are
	defer w.group.mu.Unlock()
	if err := w.group.mark(fmt.Sprintf("watch %q", path), unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, opens, dir); err != nil {
		return err
	}
	w.group.dirs[k], w.keys = directory{w, path}, append(w.keys, k)
	return nil
}

// Stop ends all reports. It removes the marks of directories whose descriptors it is given. The others go with their
// directories, and cost whoever opens files there some microseconds until then.
func (w *Watch) Stop(dirs ...int) (err error) {
	w.group.mu.Lock()
	defer w.group.mu.Unlock()
	for _, k := range w.keys {
		if w.group.dirs[k].watch == w {
			delete(w.group.dirs, k)
		}
	}
	w.keys = nil
	for _, dir := range dirs {
		err = errors.Join(err, w.group.mark("unwatch a directory", unix.FAN_MARK_REMOVE, opens, dir))
	}
	return err
}

// Ignore ends the reports of a file, by whichever of its links it is opened, until Listen. file is a descriptor, not of
// O_PATH.
func (g *Group) Ignore(file int) error {
	return g.mark("ignore a file", unix.FAN_MARK_ADD|unix.FAN_MARK_IGNORE_SURV, unix.FAN_OPEN, file)
}

// Listen undoes Ignore.
func (g *Group) Listen(file int) error {
	return g.mark("listen to a file", unix.FAN_MARK_REMOVE|unix.FAN_MARK_IGNORE_SURV, unix.FAN_OPEN, file)
}

// mark changes a mark; it is no error that one to remove is not there.
func (g *Group) mark(what string, flags uint, mask uint64, of int) (err error) {
	closed := g.conn.Control(func(fd uintptr) { err = unix.FanotifyMark(int(fd), flags, mask, of, "") })
	if flags&unix.FAN_MARK_REMOVE != 0 && errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err = errors.Join(closed, err); err != nil {
		return explain(what+": fanotify_mark", err)
	}
	return nil
}
