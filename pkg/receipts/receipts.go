// Package receipts tells which files of a file system other processes open. It asks the kernel, by fanotify.
//
// It owns the process's fanotify group, the marks in it, and what their events belong to. It must not know what the
// files are for, where receipts are kept, or whose files they are. It keeps no descriptor of a watched file system,
// and marks go with their file system, so neither hinders an unmount.
//
// An open counts whichever mount, path or namespace it goes through. What opens nothing does not count: stat, a listing,
// O_PATH, reads of an open descriptor. Who opened a file can't be told. The kernel notes an open before open(2) returns, so
// whatever is read through the descriptor is read after its event.
//
// All watches share one queue, so that an open wakes nobody. A noisy file system must not cost the others anything: a watch
// whose events come too fast is ended, and its owner removes the mark.
package receipts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// groupFlags has events name a file by its handle. A queue with a limit would lose the events of one volume when the
	// readers of another one fill it; noise ends a watch long before the queue is large.
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_UNLIMITED_MARKS | unix.FAN_UNLIMITED_QUEUE | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

	// pause is the time between two reads. Equal events merge in the queue: who opens a file in a loop is reported five times
	// a second instead of fifty thousand. Nobody sleeps on the group meanwhile, whom each first open would have to wake.
	pause = 200 * time.Millisecond
	// idlePause is the same after maxEmpty reads in a row that found nothing.
	idlePause, maxEmpty = 3 * pause, 25
	// busy is how many events of one read have the next one follow at once: the queue is filling.
	busy = 1024
	// maxEvents is how many events all watches together may have in a pause. Beyond that the noisiest one is ended. It is
	// enough for 32 processes that each open all of 512 files.
	maxEvents = 16 << 10
	// maxLate is for how many pauses in a row events may come too fast of a file system whose owner does not remove the
	// mark. Then the group is thrown away.
	maxLate = 25
	// maxQueued is how many events are queued at most, of about 200 bytes of kernel memory each. What is more is thrown away
	// with the queue; that happens only where this process hardly gets a processor.
	maxQueued = 512 << 10
	// bufferSize is room for a thousand events.
	bufferSize = 64 << 10

	// A group that can't be made is tried again after retryMin, later after up to retryMax.
	retryMin, retryMax = 10 * time.Second, 10 * time.Minute
)

// ErrNoisy is why a watch was ended whose events came too fast.
var ErrNoisy = errors.New("files of the volume are opened too fast, by too many processes")

// errTooMany is why all watches are ended.
var errTooMany = errors.New("more opens are queued than this process can read")

// Group is a fanotify group. It is safe for concurrent use, and must be closed.
//
// It has no goroutine of its own: Run is the caller's, and ends with its context. Run and Drain call the callbacks, one at a
// time. No callback may block, or call the Group.
type Group struct {
	pid int32
	// most is how many events all watches together may have in a pause: maxEvents.
	most     int
	flags    uint
	overflow func()

	// reading has a token of who takes events off the queue, until they are reported. It is taken before mu, and guards what
	// follows: the events since the last pause, of each watch, of all and of none, and in how many pauses in a row the latter
	// were too many.
	reading     chan struct{}
	buffer      []byte
	counts      map[*watch]int
	total, late int
	latePauses  int
	// reads counts the reads that have reported all that was queued when they began.
	reads atomic.Uint64

	// mu guards the fields below. It is held over no read and no callback.
	mu      sync.Mutex
	fd      int // -1 while there is no group
	closed  bool
	watches map[string]*watch // by file system
	// refusal is why there is no group, retryAt when it is tried again, and failures how often that has failed.
	refusal  error
	retryAt  time.Time
	failures int
}

// watch is the watch of a file system. It does not change.
type watch struct {
	fs     string
	opened func(files []string)
	lost   func(err error)
}

// New returns a Group without a watch. It calls overflow when opens may have been lost, of any file.
func New(overflow func()) *Group {
	return &Group{
		pid: int32(os.Getpid()), most: maxEvents, flags: groupFlags, overflow: overflow, fd: -1, reading: make(chan struct{}, 1),
		watches: make(map[string]*watch), counts: make(map[*watch]int), buffer: make([]byte, bufferSize),
	}
}

// make makes the kernel's group, if there is none. What the kernel refuses is tried again later: the node may have too many
// groups just now. The caller holds mu.
func (g *Group) make() error {
	switch {
	case g.closed:
		return fmt.Errorf("fanotify group: %w", os.ErrClosed)
	case g.fd >= 0:
		return nil
	case time.Now().Before(g.retryAt):
		return g.refusal
	}
	fd, err := unix.FanotifyInit(g.flags, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		g.refusal = explain("make a fanotify group", err)
		g.retryAt = time.Now().Add(min(retryMin<<min(g.failures, 10), retryMax))
		g.failures++
		return g.refusal
	}
	g.fd, g.refusal, g.failures = fd, nil, 0
	return nil
}

// Close ends the group, and with it all marks.
func (g *Group) Close() error {
	g.reading <- struct{}{}
	defer func() { <-g.reading }()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return fmt.Errorf("close the fanotify group: %w", os.ErrClosed)
	}
	g.closed = true
	clear(g.watches)
	return g.end()
}

// end closes the kernel's group. The caller holds reading and mu.
func (g *Group) end() error {
	fd := g.fd
	if g.fd = -1; fd < 0 {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// Watch reports opens of the files of the file system that dir is of, from now on until it is unmounted or the Watch is
// stopped. It calls opened with the IDs of files that other processes have opened, for a file that is not ignored again and
// again, and lost once if the watch was ended, with the reason; after ErrNoisy, Unmark is due. stop is idempotent; a report that
// is just being made may come after it. The Group's comment says what
// these may do. dir is a descriptor, not of O_PATH, and needed no longer than for the call. A file system has one watch: the
// last one.
func (g *Group) Watch(dir int, opened func(files []string), lost func(err error)) (stop func(), err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return nil, fmt.Errorf("watch a file system: statfs: %w", err)
	}
	fs := binary.NativeEndian.AppendUint32(nil, uint32(st.Fsid.Val[0]))
	fs = binary.NativeEndian.AppendUint32(fs, uint32(st.Fsid.Val[1]))
	w := &watch{fs: string(fs), opened: opened, lost: lost}
	g.mu.Lock() // until it is known whose the mark's events are
	defer g.mu.Unlock()
	if err := g.make(); err != nil {
		return nil, err
	}
	if err := g.mark("watch a file system", unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, dir); err != nil {
		return nil, err
	}
	g.watches[w.fs] = w
	return func() { g.stop(w) }, nil
}

// stop ends the reports of a watch. It is idempotent.
func (g *Group) stop(w *watch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watches[w.fs] == w {
		delete(g.watches, w.fs)
	}
}

// Unmark has the kernel note no more opens of the file system that dir is of, a descriptor not of O_PATH. Its watch has ended.
func (g *Group) Unmark(dir int) error {
	return g.change("end the watch of a file system", unix.FAN_MARK_REMOVE|unix.FAN_MARK_FILESYSTEM, dir)
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
// O_PATH. Without a watch there is nothing to ignore.
func (g *Group) Ignore(file int) error {
	return g.change("ignore a file", unix.FAN_MARK_ADD|unix.FAN_MARK_IGNORE_SURV, file)
}

// Listen undoes Ignore.
func (g *Group) Listen(file int) error {
	return g.change("listen to a file", unix.FAN_MARK_REMOVE|unix.FAN_MARK_IGNORE_SURV, file)
}

// change changes a mark, if there is a group.
func (g *Group) change(what string, flags uint, of int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return fmt.Errorf("%s: %w", what, os.ErrClosed)
	case g.fd < 0:
		return nil
	}
	return g.mark(what, flags, of)
}

// mark changes a mark; it is no error that one to remove is not there. The caller holds mu.
func (g *Group) mark(what string, flags uint, of int) error {
	err := unix.FanotifyMark(g.fd, flags, unix.FAN_OPEN, of, "")
	if err == nil || flags&unix.FAN_MARK_REMOVE != 0 && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return explain(what+": fanotify_mark", err)
}
