package publisher

import (
	"errors"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// fakeOpens stands for the kernel, which needs root to watch files. It is safe for concurrent use.
type fakeOpens struct {
	mu      sync.Mutex
	dirs    map[uint64]fakeDir
	ignored map[uint64]bool
	pending []func()
	refuses bool
	// onAdd is called at the end of Add.
	onAdd func() error
}

type fakeDir struct {
	watch *fakeWatch
	path  string
}

type fakeWatch struct {
	opens  *fakeOpens
	opened func([]string)
}

func newFakeOpens() *fakeOpens {
	return &fakeOpens{dirs: map[uint64]fakeDir{}, ignored: map[uint64]bool{}}
}

func (o *fakeOpens) Watch(opened func([]string)) Watch { return &fakeWatch{o, opened} }

func (w *fakeWatch) Add(dir int, path string) error {
	if _, err := w.opens.Drain(); err != nil {
		return err
	}
	w.opens.mu.Lock()
	if w.opens.refuses {
		w.opens.mu.Unlock()
		return errFault
	}
	w.opens.dirs[inode(dir)] = fakeDir{w, path}
	w.opens.mu.Unlock()
	if w.opens.onAdd != nil {
		return w.opens.onAdd()
	}
	return nil
}

func (w *fakeWatch) Stop(...int) error {
	w.opens.mu.Lock()
	defer w.opens.mu.Unlock()
	for key, dir := range w.opens.dirs {
		if dir.watch == w {
			delete(w.opens.dirs, key)
		}
	}
	return nil
}

func (o *fakeOpens) Ignore(file int) error { return o.setIgnored(file, true) }
func (o *fakeOpens) Listen(file int) error { return o.setIgnored(file, false) }

func (o *fakeOpens) setIgnored(file int, to bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored[inode(file)] = to
	return nil
}

// Drain tells of the opens that are queued.
func (o *fakeOpens) Drain() (int, error) {
	o.mu.Lock()
	pending := o.pending
	o.pending = nil
	o.mu.Unlock()
	for _, tell := range pending {
		tell()
	}
	return len(pending), nil
}

// open has a file opened that is at a path of the host, without links.
func (o *fakeOpens) open(file string) error {
	var of, in unix.Stat_t
	if err := errors.Join(unix.Stat(file, &of), unix.Stat(filepath.Dir(file), &in)); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if dir, ok := o.dirs[in.Ino]; ok && !o.ignored[of.Ino] {
		o.pending = append(o.pending, func() { dir.watch.opened([]string{path.Join(dir.path, filepath.Base(file))}) })
	}
	return nil
}

// forget stands for the end of a process.
func (o *fakeOpens) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.dirs)
	clear(o.ignored)
	o.pending = nil
}

// lose stands for an overflow of the queue.
func (o *fakeOpens) lose() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = nil
}

func (o *fakeOpens) watched() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.dirs)
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		panic(err)
	}
	return st.Ino
}
