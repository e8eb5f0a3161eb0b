package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
)

// remount tries to make mounts writable that are not, each in all ways: each place's directory is a mount, or the file alone. What can be
// written gets the byte that it has. Each try is in a mount namespace that ends with it, so that the next finds the mount as it was. If the
// attacker may not have one of those, it tries in its own. The rehearsal is on a mount that the attacker has made read-only itself.
func remount(_ context.Context, a *answers.Assault) (*siege, error) {
	s, own := newSiege(), filepath.Join(a.Scratch, "own")
	for name, strike := range remounts() {
		count(s.Rehearsal, name, onThread(func() error {
			t := target{mount: own, file: own + "/key"}
			if err := t.make(); err != nil {
				return err
			}
			return strike(t)
		}))
		for _, p := range a.Places {
			t := target{mount: p.Dir, file: p.Dir + "/" + p.Name}
			if p.Alone {
				t.mount = t.file
			}
			s.add(name, t.file, onThread(func() error {
				_ = unix.Unshare(unix.CLONE_NEWNS)
				return strike(t)
			}))
		}
	}
	return s, nil
}

// target is a mount that is to be made writable.
type target struct {
	// mount is its path, and file that of a file in it, or the same.
	mount, file string
}

// make mounts the target, read-only, in a mount namespace of this thread's own.
func (t target) make() error {
	if err := errors.Join(os.MkdirAll(t.mount, 0o755), unix.Unshare(unix.CLONE_NEWNS)); err != nil {
		return err
	}
	if err := unix.Mount("own", t.mount, "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := os.WriteFile(t.file, []byte("text"), 0o600); err != nil {
		return err
	}
	if err := unix.Mount("", t.mount, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	if err := overwrite(t.file); !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("it is not read-only: %v", err)
	}
	return nil
}

// remounts are the ways to make a mount writable. Each returns nil if it could write to the target's file.
func remounts() map[string]func(target) error {
	return map[string]func(target) error{
		"remount-mount":       func(t target) error { return t.afterMount(unix.MS_REMOUNT | unix.MS_BIND) },
		"remount-file-system": func(t target) error { return t.afterMount(unix.MS_REMOUNT) },
		"mount-setattr": func(t target) error {
			if err := unix.MountSetattr(unix.AT_FDCWD, t.mount, 0, writable()); err != nil {
				return err
			}
			return overwrite(t.file)
		},
		"open-tree": target.inClone,
	}
}

// overwrite writes the first byte of a file over itself.
func overwrite(file string) error {
	return withFile(file, unix.O_RDWR, func(fd int) error {
		first := make([]byte, 1)
		if _, err := unix.Pread(fd, first, 0); err != nil {
			return err
		}
		_, err := unix.Pwrite(fd, first, 0)
		return err
	})
}

func (t target) afterMount(flags uintptr) error {
	if err := unix.Mount("", t.mount, "", flags, ""); err != nil {
		return err
	}
	return overwrite(t.file)
}

func writable() *unix.MountAttr { return &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY} }

// inClone writes through a copy of the mount that is nowhere.
func (t target) inClone() error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, t.mount, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, writable()); err != nil {
		return err
	}
	return overwrite(fmt.Sprintf("/proc/self/fd/%d%s", fd, t.file[len(t.mount):]))
}
