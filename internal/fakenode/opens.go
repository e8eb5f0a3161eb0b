package fakenode

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/receipts"
)

// Opens is the kernel's queue of opened files. All volumes count as one file system, so a watch receives the opens of all files. Its methods are those
// of receipts.Group, for one process after another, and are safe for concurrent use.
type Opens struct {
	// OnID is called at the end of ID, and OnIgnore at the start of Ignore. Set them while nothing runs.
	OnID     func() error
	OnIgnore func(file int)

	mu      sync.Mutex
	watches map[*watch]bool
	ignored map[string]bool
	queue   []string
	begun   int
	reads   receipts.Position
}

type watch struct{ opened func([]string) }

// NewOpens returns an empty queue.
func NewOpens() *Opens { return &Opens{watches: map[*watch]bool{}, ignored: map[string]bool{}} }

// Forget is the end of a process.
func (o *Opens) Forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.watches)
	clear(o.ignored)
	o.queue = nil
}

// Watched returns the number of watches.
func (o *Opens) Watched() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.watches)
}

// Begun returns the number of watches that were ever begun.
func (o *Opens) Begun() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.begun
}

func (o *Opens) Watch(_ int, _ string, opened func([]string), _ func(error)) (stop func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := &watch{opened}
	o.watches[w] = true
	o.begun++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watches, w)
	}, nil
}

func (o *Opens) Unmark(int) error { return nil }

func (o *Opens) ID(dir int, path string) (string, error) {
	id, err := identity(dir, path)
	if err == nil && o.OnID != nil {
		err = o.OnID()
	}
	return id, err
}

// identity distinguishes a file from a later one with the same number.
func identity(dir int, path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", err
	}
	return fmt.Sprint(st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}

// Drain reports what is queued.
func (o *Opens) Drain(time.Duration) error {
	o.mu.Lock()
	queue, watches := o.queue, slices.Collect(maps.Keys(o.watches))
	o.queue = nil
	o.reads++
	o.mu.Unlock()
	for _, w := range watches {
		if len(queue) > 0 { // an empty report would wake each volume again and again
			w.opened(queue)
		}
	}
	return nil
}

func (o *Opens) HasReported(before receipts.Position) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return before != 0 && o.reads >= before
}

func (o *Opens) Ignore(file int) (receipts.Position, error) {
	if o.OnIgnore != nil {
		o.OnIgnore(file)
	}
	err := o.setIgnored(file, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reads + 2, err // as in receipts.Group
}

func (o *Opens) Listen(file int) error { return o.setIgnored(file, false) }

func (o *Opens) setIgnored(file int, to bool) error {
	id, err := identity(file, "")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored[id] = to
	return err
}

// Open is a container that opens a file at a path without links. IsIgnored reports whether nobody would hear of that.
func (o *Opens) Open(path string) error {
	id, err := identity(unix.AT_FDCWD, path)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil && !o.ignored[id] {
		o.queue = append(o.queue, id)
	}
	return err
}

func (o *Opens) IsIgnored(path string) bool {
	id, err := identity(unix.AT_FDCWD, path)
	o.mu.Lock()
	defer o.mu.Unlock()
	return err == nil && o.ignored[id]
}
