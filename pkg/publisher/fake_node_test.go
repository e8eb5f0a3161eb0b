package publisher

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/fakenode"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// fakeMounts are mounts whose methods a test can count, fail and hold up by their names. It is safe for concurrent use.
type fakeMounts struct {
	t testing.TB
	fakenode.Of[Mount]
	guard
	// hooks are called with a target, or "", at the start of a method. Their error becomes the method's.
	hooks map[string]func(target string) error
	calls map[string]int
	// unreadable makes Open return a root from which nothing can be read.
	unreadable bool
}

func newFakeMounts(t testing.TB) *fakeMounts {
	m := &fakeMounts{t: t, hooks: map[string]func(string) error{}, calls: map[string]int{}}
	m.Of = fakenode.Of[Mount]{View: &fakenode.View{Mounts: fakenode.New(t, m.usage), Hook: m.begin}, As: func(h *fakenode.Handle) Mount { return h }}
	return m
}

// on sets what happens at the start of a method, or nothing for nil.
func (m *fakeMounts) on(method string, hook func(target string) error) {
	m.locked(func() { m.hooks[method] = hook })
}

// failAt makes a method fail with err until err is nil.
func (m *fakeMounts) failAt(method string, err error) {
	m.on(method, func(string) error { return err })
}

// begin counts a call and runs its hook without the lock.
func (m *fakeMounts) begin(method, _, target string) error {
	m.mu.Lock()
	m.calls[method]++
	hook := m.hooks[method]
	m.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook(target)
}

// count returns how often a method was called.
func (m *fakeMounts) count(method string) (n int) {
	m.locked(func() { n = m.calls[method] })
	return n
}

func (m *fakeMounts) Open(ctx context.Context, volumeID, target string) (*os.Root, mount.Usage, error) {
	root, usage, err := m.View.Open(ctx, volumeID, target)
	m.locked(func() {
		if err == nil && m.unreadable {
			err = root.Close()
		}
	})
	return root, usage, err
}

// usage measures a file system: files in pages, each once whatever its number of links, and an inode for each link.
func (m *fakeMounts) usage(f *fakenode.FileSystem) mount.Usage {
	seen, usage := map[uint64]bool{}, mount.Usage{Capacity: f.Size, Used: f.Held}
	err := filepath.WalkDir(f.Dir, func(path string, entry fs.DirEntry, err error) error {
		usage.InodesUsed++
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &st)
		}
		if err == nil && entry.Type().IsRegular() && !seen[st.Ino] {
			seen[st.Ino] = true
			usage.Used += (st.Size + pageSize - 1) / pageSize * pageSize
		}
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
	return usage
}

// vanish unmounts without the Publisher's knowledge.
func (m *fakeMounts) vanish(target string) {
	m.Locked(func(attached map[string]*fakenode.FileSystem) { delete(attached, target) })
}

// hold makes readers of a volume hold so many bytes of deleted files.
func (m *fakeMounts) hold(target string, bytes int64) {
	m.Locked(func(attached map[string]*fakenode.FileSystem) { attached[target].Held = bytes })
}

// files returns the content of each file that a container finds in the mount at target under the names that users see, or nil if nothing is
// mounted.
func (m *fakeMounts) files(target string) map[string]string {
	dir := m.Directory(target)
	if dir == "" {
		return nil
	}
	shown, data := map[string]string{}, filepath.Join(dir, "..data")
	if _, err := os.Stat(data); err != nil {
		return shown
	}
	err := fs.WalkDir(os.DirFS(data), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, path)) // by the link that users see
		shown[path] = string(text)
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
	return shown
}

// errFault is the error of an injected fault.
var errFault = errors.New("injected fault")

// hangs is the content of files whose writes hang, from a call of hang until its release.
const hangs = "this hangs"

// faultyWrites decides which writes of a test fail. It is safe for concurrent use.
type faultyWrites struct {
	guard
	// fault is called before each write, late after it.
	fault, late func() error
	released    chan struct{}
	// hanging counts the writes that hang.
	hanging atomic.Int32
}

func (f *faultyWrites) set(fault, late func() error) {
	f.locked(func() { f.fault, f.late = fault, late })
}

func (f *faultyWrites) hang() (release func()) {
	released := make(chan struct{})
	f.locked(func() { f.released = released })
	return func() { close(released) }
}

// begin hangs if a file of the tree does, and returns what to call before and after the write.
func (f *faultyWrites) begin(tree *volume.Payload) (fault, late func() error) {
	var released chan struct{}
	f.locked(func() { released = f.released })
	for i := range tree.Files {
		if released != nil && string(tree.Files[i].Data) == hangs {
			f.hanging.Add(1)
			<-released
			f.hanging.Add(-1)
		}
	}
	f.locked(func() { fault, late = f.fault, f.late })
	return fault, late
}

// testWriter is the real writer, but leaves owners unchanged, so that the tests need no root.
type testWriter struct {
	Writer
	faults *faultyWrites
}

func (w *testWriter) Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error) {
	fault, late := w.faults.begin(tree)
	if fault != nil {
		if err := fault(); err != nil {
			return writer.Result{}, err
		}
	}
	result, err := w.Writer.Write(ctx, dir, fakenode.Unowned(tree))
	if err == nil && late != nil {
		err = late()
	}
	return result, err
}

func (w *testWriter) Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error) {
	return w.Writer.Compare(ctx, dir, fakenode.Unowned(tree))
}
