// Package receipts reports which files of a file system other processes open. It uses the kernel's fanotify.
//
// It owns the process's fanotify group, the marks in it, and the mapping of events to watches. It must not know what the files are for,
// where receipts are kept, or whose files they are. It keeps no descriptor of a watched file system, and a mark disappears with its file
// system, so neither prevents an unmount.
//
// An open counts through every mount, path and namespace. Operations that open nothing don't count: stat, a listing, O_PATH, and reads of
// an open descriptor. It is not known who opened a file. The kernel queues the event before open(2) returns, so everything that is read
// through the descriptor is read after its event.
//
// All watches share one queue, and an open wakes nobody but an idle reader. A noisy file system must not cost the others anything: a watch whose events come
// too fast is ended, and the caller removes the mark. The watches of one owner count together. Otherwise an owner of
// many watches, each with a little noise, could end the watch of another owner.
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
	// groupFlags makes events name a file by its handle. The queue is unlimited. Otherwise the readers of one volume could fill it, and
	// events of other volumes would be lost. Noise ends a watch long before the queue is large.
	groupFlags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_FID | unix.FAN_UNLIMITED_MARKS | unix.FAN_UNLIMITED_QUEUE | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK

	// pause is the time between two reads. Equal events merge in the queue, so a process that opens a file in a loop is reported five times
	// a second and not fifty thousand times. A goroutine sleeps on the group only when it is idle, because each first open would wake it.
	pause = 200 * time.Millisecond
	// maxEmpty limits the reads in a row that find nothing. After them, the group is read again after the next event.
	maxEmpty = 25
	// busy is the number of events in one read after which the next read follows at once, because the queue is filling.
	busy = 1024
	// maxEvents limits the events of all watches together in one pause. Beyond it, the noisiest watch of the noisiest owner is ended. It is
	// enough for 32 processes that each open 512 files.
	maxEvents = 16 << 10
	// maxLate limits the pauses in a row with too many events of file systems whose mark the caller does not remove. Beyond it, the group is
	// discarded.
	maxLate = 25
	// maxQueued limits the events in the queue. Each needs about 200 bytes of kernel memory. Beyond it the queue is discarded. That happens
	// only if this process gets hardly any CPU time.
	maxQueued = 512 << 10
	// bufferSize has room for a thousand events.
	bufferSize = 64 << 10

	// If the group cannot be created, that is retried after retryMin, and later after up to retryMax.
	retryMin, retryMax = 10 * time.Second, 10 * time.Minute
)

// noDescriptor is what system calls return for a descriptor where there is none.
const noDescriptor = -1

// ErrNoisy says that a watch was ended because its events came too fast.
var ErrNoisy = errors.New("files of the volume are opened too fast, by too many processes")

// errTooMany says why all watches were ended.
var errTooMany = errors.New("more opens are queued than this process can read")

// Group is a fanotify group. It is safe for concurrent use, and must be closed.
//
// It has no goroutine of its own: the caller runs Run, which ends with its context. Run and Drain call the callbacks, one at a time. A
// callback must not block and must not call the Group.
type Group struct {
	pid int32
	// most limits the events of all watches together in one pause. It is maxEvents, except in tests.
	most     int
	flags    uint
	overflow func()

	// reading has a token for the goroutine that takes events off the queue, until it has reported them. It is taken before mu, and guards
	// the fields below: the events since the last pause, per owner, in total, and without a watch (late), and the number of pauses in a row
	// with too many late ones.
	reading     chan struct{}
	buffer      []byte
	counts      map[string]*count // by owner
	total, late int
	latePauses  int
	// reads counts the reads that have reported everything that was queued when they began.
	reads atomic.Uint64

	// mu guards the fields below. It is not held during a read or a callback.
	mu      sync.Mutex
	fd      int      // noDescriptor while there is no group
	sleeper *sleeper // nil while Run does not run
	closed  bool
	watches map[string]*watch // by file system
	// refusal says why there is no group. retryAt is when creating it is retried. failures counts the failed tries.
	refusal  error
	retryAt  time.Time
	failures int
}

// watch is the watch of a file system. It is constant.
type watch struct {
	fs     string
	owner  string
	opened func(files []string)
	lost   func(err error)
}

// count is the number of events of an owner since the last pause, per watch and in total. Watches that were ended no longer count.
type count struct {
	watches map[*watch]int
	total   int
}

// New returns a Group without a watch. It calls overflow when opens of any file may have been lost.
func New(overflow func()) *Group {
	return &Group{
		pid: int32(os.Getpid()), most: maxEvents, flags: groupFlags, overflow: overflow, fd: noDescriptor, reading: make(chan struct{}, 1),
		watches: make(map[string]*watch), counts: make(map[string]*count), buffer: make([]byte, bufferSize),
	}
}

// make creates the kernel's group, if there is none. If the kernel refuses it, that is retried later: the node may have too many groups at
// the moment. The caller holds mu.
func (g *Group) make() error {
	switch {
	case g.closed:
		return fmt.Errorf("fanotify group: %w", os.ErrClosed)
	case g.fd != noDescriptor:
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
	if g.sleeper != nil {
		_ = g.sleeper.arm(fd)
	}
	return nil
}

// Close closes the group, which removes all marks. A second call fails with os.ErrClosed.
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
	if g.fd = noDescriptor; fd == noDescriptor {
		return nil
	}
	return os.NewSyscallError("close", unix.Close(fd))
}

// Watch reports opens of all files of dir's file system, until it is unmounted or stop is called. dir is a descriptor, opened without
// O_PATH, and is needed only during the call. A file system has one watch: the last one. owner is any string: events
// that come too fast are counted for all watches with the same owner together.
//
// Watch calls opened with the IDs of files that other processes have opened. A file that is not ignored is reported again and again. It
// calls lost once, with the reason, if the watch was ended; after ErrNoisy the caller must call Unmark. The comment of Group says what these
// functions may do. stop is idempotent. A report that is in progress may still arrive after it.
func (g *Group) Watch(dir int, owner string, opened func(files []string), lost func(err error)) (stop func(), err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil {
		return nil, fmt.Errorf("watch a file system: statfs: %w", err)
	}
	fs := binary.NativeEndian.AppendUint32(nil, uint32(st.Fsid.Val[0]))
	fs = binary.NativeEndian.AppendUint32(fs, uint32(st.Fsid.Val[1]))
	w := &watch{fs: string(fs), owner: owner, opened: opened, lost: lost}
	g.mu.Lock() // until it is known to whom the mark's events belong
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

// Unmark removes the mark of dir's file system, so that the kernel reports no more opens. dir is a descriptor, opened without O_PATH. Its
// watch has ended before.
func (g *Group) Unmark(dir int) error {
	return g.change("end the watch of a file system", unix.FAN_MARK_REMOVE|unix.FAN_MARK_FILESYSTEM, dir)
}

// ID returns the ID of a file in reports. A file keeps its ID as long as it exists, and no later file of the same file system gets it. path
// is relative to the directory dir. If path is "", the file is dir itself, which may be any descriptor.
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

// Ignore ends the reports of a file, through all its links, until Listen. file is a descriptor, opened without O_PATH. It returns the
// end of the queue: opens of the file from before are before that position. It does nothing if there is no group.
func (g *Group) Ignore(file int) (Position, error) {
	if err := g.change("ignore a file", unix.FAN_MARK_ADD|unix.FAN_MARK_IGNORE_SURV, file); err != nil {
		return 0, err
	}
	return g.position(), nil // only now: just before the change, the queue may have been read and the file opened again
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
	case g.fd == noDescriptor:
		return nil
	}
	return g.mark(what, flags, of)
}

// mark changes a mark. To remove a mark that does not exist is no error. The caller holds mu.
func (g *Group) mark(what string, flags uint, of int) error {
	err := unix.FanotifyMark(g.fd, flags, unix.FAN_OPEN, of, "")
	if err == nil || flags&unix.FAN_MARK_REMOVE != 0 && errors.Is(err, unix.ENOENT) {
		return nil
	}
	return explain(what+": fanotify_mark", err)
}
