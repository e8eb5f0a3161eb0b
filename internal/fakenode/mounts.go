// Package fakenode has what a node gives to the plugin, without root: file systems with a table of mounts, and reports of opened files. The files are
// real. A test adds its faults by hooks.
package fakenode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/internal/sandbox"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// Mounts has a directory for each file system, and a table of mounts. Its methods are those of mount.Mounter and are safe for concurrent use. It
// notes misuse: a volume that two goroutines write at the same time, or that is unmounted during a write.
type Mounts struct {
	Dir string
	// Usage says how much of a file system is used.
	Usage func(f *FileSystem) mount.Usage

	mu       sync.Mutex
	attached map[string]*FileSystem
	made     int
	misuse   []string
}

// Hook is called without a lock at the start of a method of a View, and at the end of Attach and Unmount as "Attached" and "Unmounted". Its error becomes
// that of the method.
type Hook func(method, id, target string) error

// FileSystem is one tmpfs.
type FileSystem struct {
	ID, Dir string
	Size    int64
	// Held is the memory of deleted files that readers have open.
	Held    int64
	handles int
}

// New returns mounts in a directory that goes with the test.
func New(t testing.TB, usage func(f *FileSystem) mount.Usage) *Mounts {
	t.Helper()
	return &Mounts{Dir: Dir(t), Usage: usage, attached: map[string]*FileSystem{}}
}

// Dir creates a directory on tmpfs if there is one with attributes of users, because a disk may limit them.
func Dir(t testing.TB) string {
	t.Helper()
	path := sandbox.TempDir(t)
	if unix.Setxattr(path, "user.refvol.try", []byte("1"), 0) != nil {
		return t.TempDir() // before Linux 6.6
	}
	return path
}

// Unowned returns a tree that leaves owners unchanged, so that writing it needs no root.
func Unowned(tree *volume.Payload) *volume.Payload {
	t := *tree
	t.UID, t.GID = volume.NoOwner, volume.NoOwner
	return &t
}

// Locked calls do with the file systems by target, which it may change.
func (m *Mounts) Locked(do func(attached map[string]*FileSystem)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do(m.attached)
}

// At returns the volume and the directory of the mount at a target, or "".
func (m *Mounts) At(target string) (id, dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.attached[target]; f != nil {
		return f.ID, f.Dir
	}
	return "", ""
}

// Directory returns the directory of the mount at a target, or "".
func (m *Mounts) Directory(target string) string {
	_, dir := m.At(target)
	return dir
}

// Targets returns where something is mounted.
func (m *Mounts) Targets() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.attached))
}

// Leftovers returns the directories of file systems that are not attached.
func (m *Mounts) Leftovers() (left []string) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		isOf := func(f *FileSystem) bool { return filepath.Base(f.Dir) == e.Name() }
		if !slices.ContainsFunc(slices.Collect(maps.Values(m.attached)), isOf) {
			left = append(left, e.Name())
		}
	}
	return left
}

// Misuse returns what was done that must not be, and which mounts have handles.
func (m *Mounts) Misuse() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(m.misuse)
	for target, f := range m.attached {
		if f.handles != 0 {
			all = append(all, fmt.Sprintf("%d handles left open on the mount at %s", f.handles, target))
		}
	}
	return all
}

// prove returns the file system of a volume. The caller holds mu.
func (m *Mounts) prove(id, target string) (*FileSystem, error) {
	switch f := m.attached[target]; {
	case f == nil:
		return nil, mount.ErrNotMounted
	case f.ID != id:
		return nil, mount.ErrForeign
	default:
		return f, nil
	}
}

// View is the mounts as one process sees them.
type View struct {
	*Mounts
	Hook Hook
}

// Of is a View whose handles have another type, such as publisher.Mount.
type Of[M any] struct {
	*View
	As func(h *Handle) M
}

// Create is that of the View.
func (v Of[M]) Create(ctx context.Context, params mount.Params) (handle M, err error) {
	h, err := v.View.Create(ctx, params)
	if err == nil {
		handle = v.As(h)
	}
	return handle, err
}

// Reopen is that of the View.
func (v Of[M]) Reopen(ctx context.Context, id, target string) (handle M, err error) {
	h, err := v.View.Reopen(ctx, id, target)
	if err == nil {
		handle = v.As(h)
	}
	return handle, err
}

// Handle is a handle on a file system, as mount.Mount is.
type Handle struct {
	*View
	fsys *FileSystem
	root *os.Root
	// isOwn means that the file system was never attached: closing the handle removes it.
	isOwn bool
}

func (v *View) Create(ctx context.Context, params mount.Params) (*Handle, error) {
	if err := errors.Join(v.Hook("Create", params.VolumeID, ""), ctx.Err()); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.made++
	f := &FileSystem{ID: params.VolumeID, Dir: filepath.Join(v.Dir, fmt.Sprintf("%s.%d", params.VolumeID, v.made)), Size: params.Size}
	if err := os.Mkdir(f.Dir, 0o755); err != nil {
		return nil, err
	}
	return v.handle(f, true)
}

func (v *View) Reopen(ctx context.Context, id, target string) (*Handle, error) {
	if err := errors.Join(v.Hook("Reopen", id, target), ctx.Err()); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	f, err := v.prove(id, target)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", mount.ErrNotMounted, err)
	}
	return v.handle(f, false)
}

// handle returns a new handle. The caller holds mu.
func (v *View) handle(f *FileSystem, isOwn bool) (*Handle, error) {
	if f.handles++; f.handles > 1 {
		v.misuse = append(v.misuse, "two write to "+f.ID)
	}
	root, err := os.OpenRoot(f.Dir)
	return &Handle{v, f, root, isOwn}, err
}

func (v *View) Open(_ context.Context, id, target string) (root *os.Root, usage mount.Usage, err error) {
	err = v.with("Open", id, target, func(f *FileSystem) (err error) {
		usage = v.Mounts.Usage(f)
		root, err = os.OpenRoot(f.Dir)
		return err
	})
	return root, usage, err
}

func (v *View) Check(_ context.Context, id, target string) error {
	return v.with("Check", id, target, func(*FileSystem) error { return nil })
}

func (v *View) Unmount(_ context.Context, id, target string) error {
	if err := v.with("Unmount", id, target, func(f *FileSystem) error {
		if f.handles > 0 {
			v.misuse = append(v.misuse, "unmounted during a write: "+id)
		}
		delete(v.attached, target)
		return os.RemoveAll(f.Dir)
	}); err != nil && !errors.Is(err, mount.ErrNotMounted) {
		return err
	}
	return v.Hook("Unmounted", id, target)
}

// with calls the hook of a method, and then do with the volume's file system while it holds mu.
func (v *View) with(method, id, target string, do func(f *FileSystem) error) error {
	if err := v.Hook(method, id, target); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	f, err := v.prove(id, target)
	if err == nil {
		err = do(f)
	}
	return err
}

func (v *View) List(context.Context) (all []mount.Mounted, err error) {
	if err := v.Hook("List", "", ""); err != nil {
		return nil, err
	}
	for _, target := range v.Targets() {
		if id, _ := v.At(target); id != "" {
			all = append(all, mount.Mounted{VolumeID: id, Target: target})
		}
	}
	return all, nil
}

func (h *Handle) Root() *os.Root { return h.root }

func (h *Handle) Attach(ctx context.Context, target string) error {
	if err := errors.Join(h.Hook("Attach", h.fsys.ID, target), ctx.Err()); err != nil {
		return err
	}
	h.mu.Lock()
	isFree := h.attached[target] == nil
	if isFree {
		h.attached[target], h.isOwn = h.fsys, false
	}
	h.mu.Unlock()
	if !isFree {
		return mount.ErrForeign
	}
	return h.Hook("Attached", h.fsys.ID, target)
}

func (h *Handle) IsMountedAt(target string) bool {
	if h.Hook("IsMountedAt", h.fsys.ID, target) != nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.attached[target] == h.fsys
}

func (h *Handle) Usage() (mount.Usage, error) {
	if err := h.Hook("Usage", h.fsys.ID, ""); err != nil {
		return mount.Usage{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.Mounts.Usage(h.fsys), nil
}

// Close closes the handle, also if its hook fails.
func (h *Handle) Close() error {
	fault := h.Hook("Close", h.fsys.ID, "")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fsys.handles--
	if h.isOwn {
		fault = errors.Join(fault, os.RemoveAll(h.fsys.Dir))
	}
	return errors.Join(fault, h.root.Close())
}
