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
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/mount"
)

// fakeMounts has a directory for each file system, and a table of mounts. It is safe for concurrent use. It records misuse: a volume that
// two goroutines write at the same time, or that is unmounted during a write.
type fakeMounts struct {
	t   testing.TB
	dir string
	guard
	// attached is the file system at each target.
	attached map[string]*fakeTmpfs
	// onOpen is called with the target of each Open. Its error becomes that of Open.
	onOpen func(target string) error
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
		onOpen:   func(string) error { return nil },
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
	m.locked(func() { m.hooks[method] = hook })
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
	onOpen := m.onOpen
	m.mu.Unlock()
	if err := onOpen(target); err != nil {
		return nil, mount.Usage{}, err
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

// vanish unmounts without the Publisher's knowledge.
func (m *fakeMounts) vanish(target string) { m.locked(func() { delete(m.attached, target) }) }

// hold makes readers of a volume hold so many bytes of deleted files.
func (m *fakeMounts) hold(target string, bytes int64) {
	m.locked(func() { m.attached[target].held = bytes })
}

// setOnOpen sets what Open calls.
func (m *fakeMounts) setOnOpen(onOpen func(target string) error) {
	m.locked(func() { m.onOpen = onOpen })
}

// setUnreadable makes mounted volumes unreadable, or readable again.
func (m *fakeMounts) setUnreadable(unreadable bool) { m.locked(func() { m.unreadable = unreadable }) }

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

// fakeMount is a handle on a file system.
type fakeMount struct {
	mounts   *fakeMounts
	fsys     *fakeTmpfs
	root     *os.Root
	reopened bool
}

func (h *fakeMount) Root() *os.Root { return h.root }

func (h *fakeMount) Attach(ctx context.Context, target string) error {
	if err := h.mounts.begin("Attach"); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := h.attach(target); err != nil {
		return err
	}
	return h.mounts.begin("Attached")
}

func (h *fakeMount) attach(target string) error {
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	if h.mounts.attached[target] != nil {
		return mount.ErrForeign
	}
	h.mounts.attached[target] = h.fsys
	return nil
}

func (h *fakeMount) IsMountedAt(target string) bool {
	if h.mounts.begin("IsMountedAt") != nil {
		return false
	}
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	return h.mounts.attached[target] == h.fsys
}

// Close closes the handle, and with it a file system that was never attached.
func (h *fakeMount) Close() error {
	fault := h.mounts.begin("Close")
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	h.fsys.open--
	if !h.reopened && !slices.Contains(slices.Collect(maps.Values(h.mounts.attached)), h.fsys) {
		if err := os.RemoveAll(h.fsys.dir); err != nil {
			h.mounts.t.Error(err)
		}
	}
	if err := h.root.Close(); err != nil {
		return err
	}
	return fault
}

func (h *fakeMount) Usage() (mount.Usage, error) {
	if err := h.mounts.begin("Usage"); err != nil {
		return mount.Usage{}, err
	}
	h.mounts.mu.Lock()
	defer h.mounts.mu.Unlock()
	return h.mounts.usageLocked(h.fsys), nil
}

// targets returns the targets with a mount.
func (m *fakeMounts) targets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.attached))
}

// leftovers returns the directories of file systems that are not attached.
func (m *fakeMounts) leftovers() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		m.t.Error(err)
	}
	var left []string
	for _, entry := range entries {
		dir := filepath.Join(m.dir, entry.Name())
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.attached)), func(f *fakeTmpfs) bool { return f.dir == dir }) {
			left = append(left, entry.Name())
		}
	}
	return left
}

// files returns the content of each file that a reader of the mount at target finds under the names that users see. It returns nil if
// nothing is mounted.
func (m *fakeMounts) files(target string) map[string]string {
	dir := m.directory(target)
	if dir == "" {
		return nil
	}
	return readFiles(m.t, dir)
}

// directory returns where the files of the mount at target are, or "".
func (m *fakeMounts) directory(target string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fsys := m.attached[target]; fsys != nil {
		return fsys.dir
	}
	return ""
}

// readFiles reads what a volume in dir shows, as a container would.
func readFiles(t testing.TB, dir string) map[string]string {
	shown := map[string]string{}
	data := filepath.Join(dir, "..data")
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
		t.Error(err)
	}
	return shown
}

// check fails the test for misuse.
func (m *fakeMounts) check() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, misuse := range m.misuse {
		m.t.Error(misuse)
	}
	for target, fsys := range m.attached {
		if fsys.open != 0 {
			m.t.Errorf("%d handles left open on the mount at %s", fsys.open, target)
		}
	}
}
