package publisher

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/receipts"
)

// fakeOpens replaces the kernel, which needs root to watch files. Its volumes are directories of one file system, so a watch receives the
// opens of all files whose IDs were requested through it. It is safe for concurrent use.
type fakeOpens struct {
	guard
	watches map[*fakeWatch]bool
	ignored map[string]bool
	pending []func()
	// onID is called at the end of ID.
	onID func() error
}

type fakeWatch struct {
	opened func([]string)
}

func newFakeOpens() *fakeOpens {
	return &fakeOpens{watches: map[*fakeWatch]bool{}, ignored: map[string]bool{}}
}

func (o *fakeOpens) Unmark(int) error { return nil }

func (o *fakeOpens) Watch(_ int, _ string, opened func([]string), _ func(error)) (stop func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := &fakeWatch{opened}
	o.watches[w] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watches, w)
	}, nil
}

func (o *fakeOpens) ID(dir int, path string) (string, error) {
	id, err := identity(dir, path)
	o.mu.Lock()
	onID := o.onID
	o.mu.Unlock()
	if err == nil && onID != nil {
		err = onID()
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

func (o *fakeOpens) Ignore(file int) (receipts.Position, error) { return 0, o.setIgnored(file, true) }

func (o *fakeOpens) Listen(file int) error { return o.setIgnored(file, false) }

func (o *fakeOpens) setIgnored(file int, to bool) error {
	id, err := identity(file, "")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored[id] = to
	return err
}

func (o *fakeOpens) HasReported(receipts.Position) bool { return false }

// Drain reports the queued opens.
func (o *fakeOpens) Drain(time.Duration) error {
	o.mu.Lock()
	pending := o.pending
	o.pending = nil
	o.mu.Unlock()
	for _, tell := range pending {
		tell()
	}
	return nil
}

// open opens a file at a path of the host, without links.
func (o *fakeOpens) open(file string) error {
	id, err := identity(unix.AT_FDCWD, file)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for w := range o.watches {
		if !o.ignored[id] {
			o.pending = append(o.pending, func() { w.opened([]string{id}) })
		}
	}
	return nil
}

// forget simulates the end of a process.
func (o *fakeOpens) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.watches)
	clear(o.ignored)
	o.pending = nil
}

func (o *fakeOpens) watched() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.watches)
}

// setOnID sets what is called at the end of ID.
func (o *fakeOpens) setOnID(onID func() error) { o.locked(func() { o.onID = onID }) }

// isIgnored reports whether a file at a path of the host is ignored.
func (o *fakeOpens) isIgnored(file string) bool {
	id, err := identity(unix.AT_FDCWD, file)
	o.mu.Lock()
	defer o.mu.Unlock()
	return err == nil && o.ignored[id]
}
