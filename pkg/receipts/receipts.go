// Package receipts tells which files of watched directories other processes open. It asks the kernel, by fanotify.
//
// It owns the process's fanotify group, the marks in it, and what a mark's events belong to. It must not know what the
// directories are for, where the receipts are kept, or whose files they are. It keeps no descriptor of a watched file
// system, and marks go with their file system, so neither hinders an unmount.
//
// An open counts whichever mount, path or namespace it goes through: a read-only bind mount, a subPath, a descriptor's
// link below /proc. Whatever opens nothing does not count: stat, the listing of a directory, reads of an open
// descriptor, O_PATH. Who opened a file can't be told. The kernel notes an open before open(2) returns: so what has
// been read through a descriptor was read after its event.
package receipts

import (
	"context"
	"encoding/binary"
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
	// groupFlags: events name a directory by its handle, and the file in it. A queue with a limit loses the events of one
	// volume when the readers of another fill it.
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_UNLIMITED_MARKS | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK
	// opens is what is watched: opens of the files in a directory. Without FAN_ONDIR those of directories are none.
	opens = unix.FAN_OPEN | unix.FAN_EVENT_ON_CHILD
	// ignore makes a mark that silences a file, also after it was written to.
	ignore = unix.FAN_MARK_IGNORE_SURV

	// pause is the time between two reads. Equal events merge in the queue: who opens a file in a loop is reported a
	// hundred times a second instead of fifty thousand.
	pause = 10 * time.Millisecond
	// bufferSize is room for about a thousand events.
	bufferSize = 64 << 10
	// maxEvent is more than the longest event has: 44 bytes, a handle of at most 128, a name of at most 256.
	maxEvent = 512
)

// Group is a fanotify group. It is safe for concurrent use, and must be closed.
//
// It has no goroutine of its own: Run is the caller's, and ends with its context. Whoever reads events, which is Run,
// Drain or Watch.Add, calls the callbacks while it holds mu. So once Stop has returned, the Watch's callback is not
// called any more, and a callback must not block, call the Group, or take a lock that is held around calls of it.
type Group struct {
	file     *os.File // for the runtime's poller, and so that nobody uses the descriptor when it is closed
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

// New makes a group. It calls overflow whenever opens may have been lost: then of no file it is known that it has not
// been opened. The error says what the kernel refused and why, as far as that can be told.
func New(overflow func()) (*Group, error) {
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
	err = g.file.SetReadDeadline(time.Time{}) // it fails if the descriptor can't be polled
	if err == nil {
		g.conn, err = g.file.SyscallConn()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("poll the fanotify group: %w", err), g.file.Close())
	}
	return g, nil
}

// Close ends the group, and with it all marks. It is called after Run has returned.
func (g *Group) Close() error {
	if err := g.file.Close(); err != nil {
		return fmt.Errorf("close the fanotify group: %w", err)
	}
	return nil
}

// Run reports opens until ctx ends, and then returns nil. An event is reported at once, or 10 ms after those before.
// After an error, which follows a call of overflow, opens are reported no longer.
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
		var readErr error
		err := g.conn.Read(func(uintptr) bool {
			n, readErr = g.drain()
			return n > 0 || readErr != nil
		})
		if ctx.Err() != nil {
			return nil
		}
		if err = errors.Join(readErr, err); err != nil {
			return fmt.Errorf("read the fanotify group: %w", err)
		}
		timer.Reset(pause)
	}
}

// Drain reports all opens until now before it returns. So what is reported later was opened later: a caller that has
// rewritten a file in place, and then drains, knows which opens were of the old content.
func (g *Group) Drain() error {
	if _, err := g.drain(); err != nil {
		return fmt.Errorf("read the fanotify group: %w", err)
	}
	return nil
}

func (g *Group) drain() (events int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drainLocked()
}

// drainLocked reads until the queue was empty for a moment, and reports what it has read.
func (g *Group) drainLocked() (events int, err error) {
	opened := make(map[*Watch]map[string]bool)
	lost := false
	for {
		n, readErr := g.read()
		for rest := g.buffer[:n]; len(rest) > 0; events++ {
			var e event
			if e, rest, err = next(rest); err != nil {
				break
			}
			lost = lost || e.lost()
			g.note(opened, e)
		}
		if err = errors.Join(err, readErr); err != nil || n <= len(g.buffer)-maxEvent {
			break // an event that waits would have been read
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

// note adds an event to the paths that were opened. That of a directory which is not watched any more is late.
func (g *Group) note(opened map[*Watch]map[string]bool, e event) {
	d, ok := g.dirs[string(e.dir)]
	if !ok || e.mask&unix.FAN_OPEN == 0 || e.mask&unix.FAN_ONDIR != 0 || e.pid == g.pid {
		return
	}
	if opened[d.watch] == nil {
		opened[d.watch] = make(map[string]bool)
	}
	opened[d.watch][path.Join(d.path, string(e.name))] = true
}

// read fills the buffer as far as there are events; it does not wait for any.
func (g *Group) read() (n int, err error) {
	closed := g.conn.Control(func(fd uintptr) {
		for {
			if n, err = unix.Read(int(fd), g.buffer); !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
	if errors.Is(err, unix.EAGAIN) {
		err = nil
	}
	return max(n, 0), errors.Join(closed, err)
}

// Watch is a set of directories whose opens are reported together. Its methods are safe for concurrent use.
type Watch struct {
	group  *Group
	opened func(paths []string)
	keys   []string // guarded by the group's mu
}

// Watch returns a Watch without directories. It calls opened with the paths of files that other processes have opened,
// sorted, for a file that is not ignored again and again. The Group's comment says what opened may do.
func (g *Group) Watch(opened func(paths []string)) *Watch { return &Watch{group: g, opened: opened} }

// Add reports opens of the files in a directory from now on, and none that came before, also if it was watched before.
// The directory's files are reported below path. dir is its descriptor, not of O_PATH.
func (w *Watch) Add(dir int, path string) error {
	k, err := key(dir)
	if err != nil {
		return fmt.Errorf("watch %q: %w", path, err)
	}
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err = g.drainLocked() // late events of the same directory go to whoever had it
	if err == nil {
		err = g.mark(unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, opens, dir)
	}
	if err != nil {
		return explain(fmt.Sprintf("watch %q", path), err)
	}
	g.dirs[k] = directory{w, path}
	w.keys = append(w.keys, k)
	return nil
}

// Stop ends the reports of all directories. The marks of those whose descriptors are given are removed; the others' go
// with their directories, and cost who opens files there some microseconds until then.
func (w *Watch) Stop(dirs ...int) error {
	w.group.mu.Lock()
	for _, k := range w.keys {
		if w.group.dirs[k].watch == w {
			delete(w.group.dirs, k)
		}
	}
	w.keys = nil
	w.group.mu.Unlock()
	var errs []error
	for _, dir := range dirs {
		if err := w.group.mark(unix.FAN_MARK_REMOVE, opens, dir); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove a directory's mark: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Ignore ends the reports of one file, by whichever of its links it is opened, until Listen. file is a descriptor, not of
// O_PATH.
func (g *Group) Ignore(file int) error {
	if err := g.mark(unix.FAN_MARK_ADD|ignore, unix.FAN_OPEN, file); err != nil {
		return explain("ignore a file", err)
	}
	return nil
}

// Listen undoes Ignore.
func (g *Group) Listen(file int) error {
	if err := g.mark(unix.FAN_MARK_REMOVE|ignore, unix.FAN_OPEN, file); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("listen to a file: %w", err)
	}
	return nil
}

func (g *Group) mark(flags uint, mask uint64, of int) (err error) {
	closed := g.conn.Control(func(fd uintptr) { err = unix.FanotifyMark(int(fd), flags, mask, of, "") })
	if err = errors.Join(closed, err); err != nil {
		return fmt.Errorf("fanotify_mark: %w", err)
	}
	return nil
}

// key returns what names a directory in its events: the file system's id, and the handle, whose number no later directory
// gets together with its generation.
func key(dir int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return "", fmt.Errorf("statfs: %w", err)
	}
	handle, _, err := unix.NameToHandleAt(dir, "", unix.AT_EMPTY_PATH)
	if err != nil {
		return "", fmt.Errorf("name_to_handle_at: %w", err)
	}
	k := make([]byte, 0, 32)
	for _, n := range []int32{st.Fsid.Val[0], st.Fsid.Val[1], int32(handle.Size()), handle.Type()} {
		k = binary.NativeEndian.AppendUint32(k, uint32(n))
	}
	return string(append(k, handle.Bytes()...)), nil
}
