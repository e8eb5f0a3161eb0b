package simulation

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

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/history"
	"github.com/refvol/refvol/pkg/mount"
)

// mounts has a directory for each file system, and a table of mounts. It is safe for concurrent use. The processes of a run use it one after
// another.
type mounts struct {
	w   *world
	dir string
	// disk is held during a write, and while the files of a killed process are copied.
	disk sync.Mutex

	mu       sync.Mutex
	attached map[string]*fileSystem // by target
	broken   map[string]bool        // targets at which no handle can be opened
	made     int
}

// fileSystem is one tmpfs.
type fileSystem struct {
	id, dir string
	size    int64
}

func newMounts(w *world) *mounts {
	return &mounts{w: w, dir: tmpfsDir(w.T), attached: map[string]*fileSystem{}, broken: map[string]bool{}}
}

// targets returns where something is mounted.
func (m *mounts) targets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.attached))
}

// directory returns where the files of the mount at a target are, or "".
func (m *mounts) directory(target string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.attached[target]; f != nil {
		return f.dir
	}
	return ""
}

// leftovers returns the directories of file systems that are not attached.
func (m *mounts) leftovers() (left []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := os.ReadDir(m.dir)
	must(err)
	for _, e := range entries {
		isOf := func(f *fileSystem) bool { return filepath.Base(f.dir) == e.Name() }
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.attached)), isOf) {
			left = append(left, e.Name())
		}
	}
	return left
}

// setBroken sets whether handles on the mount at a target can be opened.
func (m *mounts) setBroken(target string, to bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken[target] = to
}

func (m *mounts) healAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.broken)
}

// lose unmounts without the plugin's knowledge.
func (m *mounts) lose(target string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.attached[target]
	if f == nil {
		return false
	}
	delete(m.attached, target)
	must(os.RemoveAll(f.dir))
	m.w.Add(history.Event{Kind: history.Lost, Volume: f.id})
	return true
}

// crash gives each mount a copy of its files, so that what a dead process still does is not seen. It returns the old directories.
func (m *mounts) crash() (old []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for target, f := range m.attached {
		next := *f
		next.dir = f.dir + "'"
		for tries := 0; ; tries++ { // generations may be pruned meanwhile
			err := copyTree(f.dir, next.dir)
			if err == nil {
				break
			}
			must(os.RemoveAll(next.dir))
			if tries > 100 {
				panic(err)
			}
		}
		old = append(old, f.dir)
		m.attached[target] = &next
	}
	return old
}

// copyTree copies a directory with its links, modes and extended attributes.
func copyTree(from, to string) error {
	links := map[uint64]string{}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := to + strings.TrimPrefix(path, from)
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case d.IsDir():
			err = os.Mkdir(target, 0o700)
		case links[st.Ino] != "":
			return os.Link(links[st.Ino], target)
		default:
			var text []byte
			if text, err = os.ReadFile(path); err == nil {
				err = os.WriteFile(target, text, 0o600)
			}
			links[st.Ino] = target
		}
		if err != nil {
			return err
		}
		return errors.Join(copyAttributes(path, target), unix.Chmod(target, st.Mode&0o7777))
	})
}

func copyAttributes(from, to string) error {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(from, names)
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 65536)
		n, err := unix.Lgetxattr(from, name, value)
		if err == nil {
			err = unix.Lsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prove returns why the mount at a target is not that of a volume. The caller holds mu.
func (m *mounts) prove(id, target string) (*fileSystem, error) {
	switch f := m.attached[target]; {
	case f == nil:
		return nil, mount.ErrNotMounted
	case f.id != id:
		return nil, mount.ErrForeign
	default:
		return f, nil
	}
}

func (m *mounts) create(params mount.Params) (*fileSystem, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made++
	f := &fileSystem{id: params.VolumeID, dir: filepath.Join(m.dir, fmt.Sprintf("%s.%d", params.VolumeID, m.made)), size: params.Size}
	return f, os.Mkdir(f.dir, 0o755)
}

func (m *mounts) attach(f *fileSystem, target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.attached[target] != nil {
		return mount.ErrForeign
	}
	m.attached[target] = f
	return nil
}

func (m *mounts) unmount(id, target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.prove(id, target)
	if errors.Is(err, mount.ErrNotMounted) {
		return nil
	}
	if err != nil {
		return err
	}
	delete(m.attached, target)
	return os.RemoveAll(f.dir)
}

func (m *mounts) list() (all []mount.Mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, target := range slices.Sorted(maps.Keys(m.attached)) {
		all = append(all, mount.Mounted{VolumeID: m.attached[target].id, Target: target})
	}
	return all
}

// usageOf returns the use of a file system. No volume of a run comes near the limits of the node, so a guess will do: to measure it would take
// a fifth of the run's time.
func usageOf(f *fileSystem) mount.Usage {
	return mount.Usage{Capacity: f.size, Used: 64 << 10, InodesUsed: 32}
}

// view is the mounts as one process sees them. It implements publisher.Mounts.
type view struct {
	*mounts
	proc *process
}

// begin is called before each change: the process may be dead, or be killed here.
func (v *view) begin(place string) error { return v.proc.hook(place, false) }

// open returns a handle on a mounted volume, unless its mount is broken.
func (v *view) open(id, target string) (*fileSystem, *os.Root, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f, err := v.prove(id, target)
	if err == nil && v.broken[target] {
		v.w.Add(history.Event{Kind: history.Broke, Volume: id})
		err = errNode
	}
	if err != nil {
		return nil, nil, err
	}
	root, err := os.OpenRoot(f.dir)
	return f, root, err
}

// Check is as in mount.Mounter, and so are the other methods.
func (v *view) Check(_ context.Context, id, target string) error {
	if v.proc.dead.Load() {
		return errDead
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := v.prove(id, target)
	return err
}

func (v *view) Open(_ context.Context, id, target string) (*os.Root, mount.Usage, error) {
	if err := v.begin("open"); err != nil {
		return nil, mount.Usage{}, err
	}
	f, root, err := v.open(id, target)
	if err != nil {
		return nil, mount.Usage{}, err
	}
	return root, usageOf(f), nil
}

func (v *view) Unmount(_ context.Context, id, target string) error {
	if err := v.begin("unmount"); err != nil {
		return err
	}
	if err := v.unmount(id, target); err != nil {
		return err
	}
	return v.begin("unmounted")
}

func (v *view) List(context.Context) ([]mount.Mounted, error) {
	if err := v.begin("list"); err != nil {
		return nil, err
	}
	return v.list(), nil
}
