package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// remount tries to make mounts writable that are not, each in all ways: each place's
// directory is a mount, or the file alone. What can be written gets the byte that it has.
func remount(ctx context.Context, a *assault) (siege, error) {
	if a.UserNamespace {
		return remountAsRoot(ctx, a)
	}
	s := siege{Rehearsal: report{}, Report: report{}}
	for _, attack := range remounts() {
		for _, p := range a.Places {
			s.Report.add(attack.name, p.Dir+"/"+p.Name, remountOne(attack, p))
		}
		s.Rehearsal.add(attack.name, "", a.remountOwn(attack))
	}
	return s, nil
}

// remountAsRoot starts this program again in a user namespace and a mount namespace of its
// own, as everybody may where nothing forbids it. There its capabilities are all, and the
// mounts those of the container.
func remountAsRoot(ctx context.Context, a *assault) (siege, error) {
	inside := *a
	inside.UserNamespace = false
	arg, err := json.Marshal(inside)
	if err != nil {
		return siege{}, err
	}
	command := exec.CommandContext(ctx, "/proc/self/exe", "remount", string(arg))
	var out, stderr bytes.Buffer
	command.Stdout, command.Stderr = &out, &stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if err := command.Run(); err != nil {
		return siege{}, fmt.Errorf("in a user namespace: %w: %s", err, stderr.Bytes())
	}
	var s siege
	return s, json.Unmarshal(out.Bytes(), &s)
}

// target is a mount that is to be made writable.
type target struct {
	// mount is its path, and file that of a file in it, or the same.
	mount, file string
}

// remountOne makes one attack, in a mount namespace that ends with it, so that the next
// finds the mount as it was. Who may not have one of those tries in its own.
func remountOne(r remountAttack, p place) error {
	t := target{mount: p.Dir, file: filepath.Join(p.Dir, p.Name)}
	if p.Alone {
		t.mount = t.file
	}
	return onThread(func() error {
		_ = unix.Unshare(unix.CLONE_NEWNS)
		return r.strike(t)
	})
}

// errNoMount says that the attacker may not even mount something of its own.
var errNoMount = errors.New("no mount of its own")

// remountOwn makes the attack on a mount of the attacker's own, which it has made
// read-only itself.
func (a *assault) remountOwn(r remountAttack) error {
	dir := filepath.Join(a.Scratch, "own")
	t := target{mount: dir, file: dir + "/key"}
	return onThread(func() error {
		if err := t.make(); err != nil {
			return fmt.Errorf("%w: %v", errNoMount, err)
		}
		return r.strike(t)
	})
}

// make mounts the target, read-only, in a mount namespace of this thread's own.
func (t target) make() error {
	if err := os.MkdirAll(t.mount, 0o755); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
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

// remountAttack is one way to make a mount writable.
type remountAttack struct {
	name string
	// strike writes to the target's file, or what else its name says, and returns nil if it
	// could.
	strike func(t target) error
}

// remounts returns all of them.
func remounts() []remountAttack {
	return []remountAttack{
		{"remount-mount", func(t target) error { return t.afterMount(unix.MS_REMOUNT | unix.MS_BIND) }},
		{"remount-file-system", func(t target) error { return t.afterMount(unix.MS_REMOUNT) }},
		{"mount-setattr", target.afterSetattr},
		{"open-tree", target.inClone},
		{"unmount", func(t target) error { return unix.Unmount(t.mount, unix.MNT_DETACH) }},
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

func (t target) afterSetattr() error {
	if err := unix.MountSetattr(unix.AT_FDCWD, t.mount, 0, writable()); err != nil {
		return err
	}
	return overwrite(t.file)
}

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
	return overwrite("/proc/self/fd/" + strconv.Itoa(fd) + t.file[len(t.mount):])
}
