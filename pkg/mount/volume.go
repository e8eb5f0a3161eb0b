package mount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Volume is a handle on the tmpfs of one volume, which must be closed. It belongs
// to one goroutine at a time.
type Volume struct {
	mounter *Mounter
	id      string
	// mount is the descriptor of the detached mount, -1 when closed; it is the
	// visible mount's once attached.
	mount int
	root  *os.Root
	// attachable is true from Create until Attach.
	attachable bool
}

// newVolume takes over the descriptor of a detached mount, also when it fails.
func (m *Mounter) newVolume(id string, fd int) (*Volume, error) {
	// No path leads to a detached mount but this one, which is of the process's own
	// descriptor.
	root, err := os.OpenRoot(procPath(fd))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open the root of a detached mount: %w", err)
	}
	return &Volume{mounter: m, id: id, mount: fd, root: root}, nil
}

// clone returns a writable, detached copy of a proven mount.
func (m *Mounter) clone(id string, proven int) (*Volume, error) {
	fd, err := unix.OpenTree(proven, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	if err := setReadOnly(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	v, err := m.newVolume(id, fd)
	if err != nil {
		return nil, err
	}
	if err := v.sameAs(proven); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// StillAt reports whether what is mounted at target is the whole file system of the Volume,
// by this mount or another; false also where that can't be told. The file system has a number
// of its own as long as the Volume is open, and its root directory is nowhere but at the root
// of a mount. It costs a fraction of Check.
func (v *Volume) StillAt(ctx context.Context, target string) bool {
	if v.mount < 0 || v.attachable {
		return false
	}
	if ctx.Err() != nil {
		return false
	}
	rel, err := relative(v.mounter.kubeletDir, target)
	if err != nil {
		return false
	}
	dir, err := openKubeletDir(v.mounter.kubeletDir)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	fd, err := openBeneath(dir, rel, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	st, err := statx(fd, unix.STATX_INO)
	if err != nil {
		return false
	}
	var own unix.Stat_t
	if err := unix.Fstat(v.mount, &own); err != nil {
		return false
	}
	return st.Ino == own.Ino && unix.Mkdev(st.Dev_major, st.Dev_minor) == own.Dev
}

// sameAs checks that what will be written to is what was proven.
func (v *Volume) sameAs(proven int) error {
	var want unix.Stat_t
	if err := unix.Fstat(proven, &want); err != nil {
		return fmt.Errorf("stat the mount: %w", err)
	}
	got, err := v.root.Stat(".")
	if err != nil {
		return fmt.Errorf("stat the clone of the mount: %w", err)
	}
	if !sameFile(got, &want) {
		return fmt.Errorf("the clone of the mount is of another file system: %w", ErrForeign)
	}
	return nil
}

// Root returns the volume's root directory, valid until Close: writable if the
// Volume was created or reopened, read-only once it is attached.
func (v *Volume) Root() *os.Root { return v.root }

// setAttribute names the volume in the attribute of its root directory that starts with prefix.
func (v *Volume) setAttribute(prefix string) error {
	name := prefix + volumeAttribute
	// The magic link stands for the descriptor; the kernel takes none that is O_PATH.
	if err := unix.Setxattr(procPath(v.mount), name, []byte(v.mounter.source(v.id)), 0); err != nil {
		return fmt.Errorf("set attribute %s: %w", name, err)
	}
	return nil
}

// setMissingAttribute is setAttribute for a volume that was made without room for it.
func (v *Volume) setMissingAttribute(ctx context.Context) error {
	err := v.setAttribute(v.mounter.attributePrefix)
	if !errors.Is(err, unix.ENOSPC) {
		return err
	}
	has, err := usageAt(v.mount)
	if err != nil {
		return err
	}
	if err := v.Grow(ctx, has.Capacity, has.Inodes); err != nil {
		return err
	}
	return v.setAttribute(v.mounter.attributePrefix)
}

// Grow makes the volume's file system hold at least size bytes, which the kernel rounds up to
// pages, and so many inodes. That holds for every mount of it, and is all that changes: a limit
// that is larger stays, and so does what is visible read-only. It costs one cheap system call
// where nothing has to grow. On error the volume is as it was, and as usable.
func (v *Volume) Grow(ctx context.Context, size, inodes int64) error {
	if v.mount < 0 {
		return fmt.Errorf("volume %s: grow: %w", v.id, fs.ErrClosed)
	}
	has, err := usageAt(v.mount)
	if err != nil {
		return fmt.Errorf("volume %s: grow: %w", v.id, err)
	}
	settings := v.mounter.growth(has, size, inodes)
	if len(settings) == 0 {
		return nil
	}
	if err := reconfigure(v.mount, settings); err != nil {
		return fmt.Errorf("volume %s: grow: %w", v.id, err)
	}
	klog.FromContext(ctx).V(2).Info("Enlarged the file system of a volume", "size", size, "inodes", inodes)
	return nil
}

// Usage returns how much of the volume's file system is used, also by files that have no name any more
// and that readers hold open.
func (v *Volume) Usage() (Usage, error) {
	if v.mount < 0 {
		return Usage{}, fmt.Errorf("volume %s: usage: %w", v.id, fs.ErrClosed)
	}
	usage, err := usageAt(v.mount)
	if err != nil {
		return Usage{}, fmt.Errorf("volume %s: usage: %w", v.id, err)
	}
	return usage, nil
}

// Attach makes a created Volume read-only and then visible at target in one step;
// every file of it that is open for writing must be closed before. It makes the
// target's directory, whose parent must exist; a directory that is there already
// must be empty. The error matches ErrOutside, ErrForeign if something else is in
// the way, or fs.ErrExist if this volume is mounted there already. On error nothing
// is left behind at target, and the Volume can be attached again or closed, but not
// written to.
func (v *Volume) Attach(ctx context.Context, target string) error {
	if err := v.attach(ctx, target); err != nil {
		return fmt.Errorf("volume %s: attach at %s: %w", v.id, target, err)
	}
	v.attachable = false
	klog.FromContext(ctx).V(4).Info("Attached", "target", target)
	return nil
}

func (v *Volume) attach(ctx context.Context, target string) error {
	switch {
	case v.mount < 0:
		return fs.ErrClosed
	case !v.attachable:
		return fmt.Errorf("the volume is attached already: %w", fs.ErrExist)
	}
	t, err := v.mounter.resolve(target)
	if err != nil {
		return err
	}
	defer t.close()
	if err := setReadOnly(v.mount, true); err != nil {
		return err
	}
	made, err := t.mkdir()
	if err != nil {
		return err
	}
	if err := v.moveTo(ctx, t); err != nil {
		if made {
			return errors.Join(err, t.rmdir())
		}
		return err
	}
	return nil
}

// moveTo moves the mount onto the target's directory, if that is free.
func (v *Volume) moveTo(ctx context.Context, t *target) error {
	fd, err := t.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := v.mounter.isFree(fd, v.id); err != nil {
		return err
	}
	// The last moment at which a cancelled publish can still be invisible.
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := unix.MoveMount(v.mount, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// Close releases the handle, and with it a mount that was never attached. What is
// visible stays. It is idempotent.
func (v *Volume) Close() error {
	if v.mount < 0 {
		return nil
	}
	err := errors.Join(v.root.Close(), unix.Close(v.mount))
	v.mount, v.attachable = -1, false
	if err != nil {
		return fmt.Errorf("volume %s: close: %w", v.id, err)
	}
	return nil
}
