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

// Volume is a handle on the tmpfs of one volume. It must be closed, and is used by one goroutine at a time.
type Volume struct {
	mounter *Mounter
	id      string
	// mount is the descriptor of the detached mount, or after Attach of the visible one. It is noDescriptor when closed.
	mount int
	root  *os.Root
	// attachable is true from Create until Attach.
	attachable bool
}

// newVolume takes over the descriptor of a detached mount, and closes it if it fails.
func (m *Mounter) newVolume(id string, fd int) (*Volume, error) {
	// Only this path leads to a detached mount: it names the process's own descriptor.
	root, err := os.OpenRoot(procPath(fd))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open the root of a detached mount: %w", err)
	}
	return &Volume{mounter: m, id: id, mount: fd, root: root}, nil
}

// clone returns a writable, detached copy of a proven mount. It shares the file system, and the visible mount does not change.
func (m *Mounter) clone(id string, proven int) (*Volume, error) {
	fd, err := unix.OpenTree(proven, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open_tree: %w", err)
	}
	if err := setReadOnly(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return m.newVolume(id, fd)
}

// IsMountedAt reports whether the volume's file system is still mounted at target. It returns false if that cannot be found out. While the
// Volume is open, no other file system has its device number.
func (v *Volume) IsMountedAt(target string) bool {
	t, err := v.mounter.resolve(target)
	if err != nil {
		return false
	}
	defer t.close()
	var own, there unix.Stat_t
	return unix.Fstat(v.mount, &own) == nil &&
		unix.Fstatat(t.parent, t.name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		own.Dev == there.Dev && own.Ino == there.Ino
}

// Root returns the volume's root directory. It is valid until Close, writable after Create or Reopen, and read-only after Attach.
func (v *Volume) Root() *os.Root { return v.root }

// setAttribute sets the attribute of the root directory that names the volume.
func (v *Volume) setAttribute(prefix string) error {
	name := prefix + volumeAttribute
	// The magic link stands for the descriptor. The kernel does not accept an O_PATH descriptor here.
	if err := unix.Setxattr(procPath(v.mount), name, []byte(v.mounter.source(v.id)), 0); err != nil {
		return fmt.Errorf("set attribute %s: %w", name, err)
	}
	return nil
}

// Usage returns how much of the volume's file system is used.
func (v *Volume) Usage() (Usage, error) {
	usage, err := usageAt(v.mount)
	if err != nil {
		return Usage{}, fmt.Errorf("volume %s: %w", v.id, err)
	}
	return usage, nil
}

// Attach makes a created Volume read-only and visible at target in one step. All its files that are open for writing must be closed before.
// It creates the target's directory, whose parent must exist. An existing directory must be empty. The error matches ErrOutside, ErrForeign
// if something else is at the target, or fs.ErrExist if this volume is mounted there already. After an error nothing remains at target. The
// Volume can then be attached again or closed, but not written to.
func (v *Volume) Attach(ctx context.Context, target string) error {
	if err := v.attach(ctx, target); err != nil {
		return fmt.Errorf("volume %s: attach at %s: %w", v.id, target, err)
	}
	v.attachable = false
	klog.FromContext(ctx).V(4).Info("Attached", "target", target)
	return nil
}

func (v *Volume) attach(ctx context.Context, path string) error {
	switch {
	case v.mount == noDescriptor:
		return fs.ErrClosed
	case !v.attachable:
		return fmt.Errorf("the volume is attached already: %w", fs.ErrExist)
	}
	t, err := v.mounter.resolve(path)
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
	if err := v.mounter.checkFree(fd, v.id); err != nil {
		return err
	}
	// This is the last moment at which a cancelled publish can stay invisible.
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := unix.MoveMount(v.mount, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("move_mount: %w", err)
	}
	return nil
}

// Close closes the handle, and with it a mount that was never attached. A visible mount stays. It is idempotent.
func (v *Volume) Close() error {
	if v.mount == noDescriptor {
		return nil
	}
	err := errors.Join(v.root.Close(), unix.Close(v.mount))
	v.mount, v.attachable = noDescriptor, false
	if err != nil {
		return fmt.Errorf("volume %s: close: %w", v.id, err)
	}
	return nil
}
