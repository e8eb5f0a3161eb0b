package publisher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/mount"
)

// fakeMounts has a directory for each file system, and a table of mounts. It is safe for concurrent use. It records misuse: a volume that
// two goroutines write at the same time, or that is unmounted during a write.
type fakeMounts struct {
	t   testing.TB
	dir string
	mu  sync.Mutex
	// attached is the file system at each target.
	attached map[string]*fakeTmpfs
	// notOpened has targets at which Open fails. hanging has targets at which it waits until the channel is closed.
	notOpened map[string]bool
	hanging   map[string]chan struct{}
	// unreadable makes Open return a root from which nothing can be read.
	unreadable bool
	// hooks are called at the start of a method. Their error becomes the method's.
	hooks  map[string]func() error
	calls  map[string]int
	made   int
	misuse []string
}

// fakeTmpfs is one file system. open is the number of its handles.
type fakeTmpfs struct {
	volumeID, dir string
	open          int
	// size and inodes are the largest requested values.
	size, inodes int64
	// held is the memory of deleted files that readers have open.
	held int64
}

func newFakeMounts(t testing.TB) *fakeMounts {
	return &fakeMounts{
		t:        t,
		dir:      tmpfsDir(t),
		attached: map[string]*fakeTmpfs{},
		hooks:    map[string]func() error{},
		calls:    map[string]int{},
	}
}

// tmpfsDir creates a directory on tmpfs if there is one, because a disk may limit attributes.
func tmpfsDir(t testing.TB) string {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "refvol-publisher-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	if unix.Setxattr(path, "user.refvol.try", []byte("1"), 0) != nil {
		return t.TempDir() // before Linux 6.6
	}
	return path
}

// on sets what happens at the start of a method, or nothing for nil.
func (m *fakeMounts) on(method string, hook func() error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hooks[method] = hook
}

// failAt makes a method fail with err until err is nil.
func (m *fakeMounts) failAt(method string, err error) { m.on(method, func() error { return err }) }

// begin counts a call and runs its hook without the lock.
func (m *fakeMounts) begin(method string) error {
	m.mu.Lock()
	m.calls[method]++
	hook := m.hooks[method]
	m.mu.Unlock()
	if hook == nil {
		return nil
	}
	return hook()
}

// count returns how often a method was called.
func (m *fakeMounts) count(method string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[method]
}

func (m *fakeMounts) Create(ctx context.Context, params mount.Params) (Mount, error) {
	if err := m.begin("Create"); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made++
	fsys := &fakeTmpfs{
		volumeID: params.VolumeID, dir: filepath.Join(m.dir, fmt.Sprintf("%s.%d", params.VolumeID, m.made)),
		size: params.Size, inodes: params.Inodes,
	}
	if err := os.Mkdir(fsys.dir, 0o755); err != nil {
		return nil, err
	}
	return m.openLocked(fsys, false)
}

func (m *fakeMounts) Reopen(_ context.Context, volumeID, target string) (Mount, error) {
	if err := m.begin("Reopen"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.proveLocked(volumeID, target); err != nil {
		return nil, fmt.Errorf("%w: %w", mount.ErrNotMounted, err)
	}
	return m.openLocked(m.attached[target], true)
}

func (m *fakeMounts) Open(_ context.Context, volumeID, target string) (*os.Root, mount.Usage, error) {
	if err := m.begin("Open"); err != nil {
		return nil, mount.Usage{}, err
	}
	m.mu.Lock()
	fails, hanging := m.notOpened[target], m.hanging[target]
	m.mu.Unlock()
	if hanging != nil {
		<-hanging
	}
	if fails {
		return nil, mount.Usage{}, errFault
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.proveLocked(volumeID, target); err != nil {
		return nil, mount.Usage{}, err
	}
	fsys := m.attached[target]
	root, err := os.OpenRoot(fsys.dir)
	if err == nil && m.unreadable {
		err = root.Close()
	}
	return root, m.usageLocked(fsys), err
}

func (m *fakeMounts) openLocked(fsys *fakeTmpfs, reopened bool) (Mount, error) {
	root, err := os.OpenRoot(fsys.dir)
	if err != nil {
		return nil, err
	}
	if fsys.open++; fsys.open > 1 {
		m.misuse = append(m.misuse, "two write to "+fsys.volumeID)
	}
	return &fakeMount{mounts: m, fsys: fsys, root: root, reopened: reopened}, nil
}

// proveLocked is the answer to "is this mount ours?".
func (m *fakeMounts) proveLocked(volumeID, target string) error {
	switch fsys := m.attached[target]; {
	case fsys == nil:
		return mount.ErrNotMounted
	case fsys.volumeID != volumeID:
		return mount.ErrForeign
	}
	return nil
}

func (m *fakeMounts) Check(_ context.Context, volumeID, target string) error {
	if err := m.begin("Check"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proveLocked(volumeID, target)
}

func (m *fakeMounts) Unmount(_ context.Context, volumeID, target string) error {
	if err := m.begin("Unmount"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.proveLocked(volumeID, target)
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	if err != nil {
		return err
	}
	fsys := m.attached[target]
	if fsys.open > 0 {
		m.misuse = append(m.misuse, "unmounted during a write: "+volumeID)
	}
	delete(m.attached, target)
	return os.RemoveAll(fsys.dir)
}

func (m *fakeMounts) List(context.Context) ([]mount.Mounted, error) {
	if err := m.begin("List"); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []mount.Mounted
	for _, target := range slices.Sorted(maps.Keys(m.attached)) {
		all = append(all, mount.Mounted{VolumeID: m.attached[target].volumeID, Target: target})
	}
	return all, nil
}

func (m *fakeMounts) usageLocked(fsys *fakeTmpfs) mount.Usage {
	used, inodes := usedBelow(m.t, fsys.dir)
	return mount.Usage{Capacity: fsys.size, Used: used + fsys.held, InodesUsed: inodes}
}

// usedBelow returns how many bytes the files of dir use, in pages, each file once whatever its number of links, and how many inodes, with
// one for each link.
func usedBelow(t testing.TB, dir string) (used, inodes int64) {
	var seen []fs.FileInfo
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		inodes++
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil && !slices.ContainsFunc(seen, func(other fs.FileInfo) bool { return os.SameFile(info, other) }) {
			seen = append(seen, info)
			used += (info.Size() + pageSize - 1) / pageSize * pageSize
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return used, inodes
}

// vanish unmounts without the Publisher's knowledge. It returns the directory, which stays like a target that is not mounted.
func (m *fakeMounts) vanish(target string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir := m.attached[target].dir
	delete(m.attached, target)
	return dir
}

// hold makes readers of a volume hold so many bytes of deleted files.
func (m *fakeMounts) hold(target string, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached[target].held = bytes
}

// failOpen makes Open fail at the targets of these requests only.
func (m *fakeMounts) failOpen(requests []binding.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notOpened = map[string]bool{}
	for _, r := range requests {
		m.notOpened[r.Target] = true
	}
}

// setUnreadable makes mounted volumes unreadable, or readable again.
func (m *fakeMounts) setUnreadable(unreadable bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unreadable = unreadable
}

// hangs makes Open at a target hang until release is called.
func (m *fakeMounts) hangs(target string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	hanging := make(chan struct{})
	m.hanging = map[string]chan struct{}{target: hanging}
	return func() { close(hanging) }
}

// setAttribute sets an attribute of the file at a path, which starts with a target.
func (m *fakeMounts) setAttribute(path, name, value string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for target, fsys := range m.attached {
		if rest, ok := strings.CutPrefix(path, target); ok {
			if err := unix.Setxattr(fsys.dir+rest, name, []byte(value), 0); err != nil {
				m.t.Fatal(err)
			}
		}
	}
}
