package simulation

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/history"

	"github.com/refvol/refvol/pkg/receipts"
)

// opens is the kernel's queue of opened files, which needs root and real time. All volumes are on one file system, so a watch receives the
// opens of all files. It implements opened.Watcher for one process after another, and is safe for concurrent use.
type opens struct {
	w *world

	mu      sync.Mutex
	watches map[*openWatch]bool
	ignored map[string]bool
	queue   []string
	reads   receipts.Position
	// stalled is a file before whose next Ignore the process stalls.
	stalled string
}

type openWatch struct{ opened func([]string) }

// drainEvery is how often the queue is read.
const drainEvery = 200 * time.Millisecond

func newOpens(w *world) *opens {
	return &opens{w: w, watches: map[*openWatch]bool{}, ignored: map[string]bool{}}
}

// forget is the end of a process.
func (o *opens) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.watches)
	clear(o.ignored)
	o.queue = nil
}

// run reads the queue until a process has died.
func (o *opens) run(died <-chan struct{}) {
	tick := time.NewTicker(drainEvery)
	defer tick.Stop()
	for {
		select {
		case <-died:
			return
		case <-tick.C:
			_ = o.Drain(0)
		}
	}
}

// Watch is as in receipts.Group, and so are the other methods.
func (o *opens) Watch(_ int, _ string, opened func([]string), _ func(error)) (stop func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := &openWatch{opened}
	o.watches[w] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.watches, w)
	}, nil
}

func (o *opens) Unmark(int) error { return nil }

func (o *opens) ID(dir int, path string) (string, error) { return identity(dir, path) }

// identity distinguishes a file from a later one with the same number.
func identity(dir int, path string) (string, error) {
	var st unix.Statx_t
	if err := unix.Statx(dir, path, unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", err
	}
	return fmt.Sprint(st.Ino, st.Btime.Sec, st.Btime.Nsec), nil
}

// Drain reports what is queued.
func (o *opens) Drain(time.Duration) error {
	o.mu.Lock()
	queue := o.queue
	o.queue = nil
	o.reads++
	var watches []*openWatch
	for w := range o.watches {
		watches = append(watches, w)
	}
	o.mu.Unlock()
	for _, w := range watches {
		if len(queue) > 0 { // an empty report would wake each volume again and again
			w.opened(queue)
		}
	}
	return nil
}

func (o *opens) HasReported(before receipts.Position) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return before != 0 && o.reads >= before
}

// Ignore may be called after a stall of the process, in which the queue is read and a container opens the file.
func (o *opens) Ignore(file int) (receipts.Position, error) {
	path, err := os.Readlink(fmt.Sprint("/proc/self/fd/", file))
	if n := o.w.roll("a stall before a file is ignored", 20); err == nil && (n == 0 || o.isStalledAt(filepath.Base(path))) {
		o.w.Met("a stall before a file is ignored")
		_ = o.Drain(0)
		_ = o.Drain(0)
		o.open(path)
	}
	err = o.setIgnored(file, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.reads + 2, err // as in receipts.Group
}

// stallAt makes the process stall the next time that it ignores a file.
func (o *opens) stallAt(file string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stalled = file
}

func (o *opens) isStalledAt(file string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stalled != file {
		return false
	}
	o.stalled = ""
	return true
}

func (o *opens) Listen(file int) error { return o.setIgnored(file, false) }

func (o *opens) setIgnored(file int, to bool) error {
	id, err := identity(file, "")
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ignored[id] = to
	return err
}

// open is a container that opens a file of a volume.
func (o *opens) open(path string) {
	id, err := identity(unix.AT_FDCWD, path)
	text, readErr := os.ReadFile(path)
	name, key, _ := strings.Cut(filepath.Base(path), "-")
	version, ok := parseVersion(string(text))
	if err != nil || readErr != nil || !ok {
		return
	}
	if volumeID, ok := o.w.mounts.volumeWith(path); ok && (key == "a" || key == "b") { // the others have no content of each version
		o.w.Add(history.Event{Kind: history.Opened, Volume: volumeID, Object: name, Text: key, Version: version})
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ignored[id] {
		o.queue = append(o.queue, id)
	}
}

// volumeWith returns the volume whose files are below a path.
func (m *mounts) volumeWith(path string) (id string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.attached {
		if strings.HasPrefix(path, f.dir+"/") {
			return f.id, true
		}
	}
	return "", false
}
