package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// makeReadOnly makes all mounts of this process's namespaces read-only, but for the directories of
// keep, proc and the control groups, where the machine's own rights decide.
func makeReadOnly(keep []string) error {
	if err := makePrivate(); err != nil {
		return err
	}
	for _, path := range keep {
		if err := bind(path, path, 0); err != nil {
			return err
		}
	}
	if err := setReadOnly("/", true); err != nil {
		return err
	}
	for _, path := range append([]string{"/proc", "/sys/fs/cgroup"}, keep...) {
		if !exists(path) {
			continue
		}
		if err := setReadOnly(path, false); err != nil {
			return err
		}
	}
	return nil
}

// setReadOnly changes the flag of what is mounted at a path, and of all below it.
func setReadOnly(path string, readOnly bool) error {
	attr := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if readOnly {
		attr = &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	}
	return wrap(fmt.Sprintf("set the mounts below %s to read-only=%t", path, readOnly),
		unix.MountSetattr(unix.AT_FDCWD, path, unix.AT_RECURSIVE, attr))
}

// enterLocked is for the inner user namespace: it gives it a directory to write to.
func enterLocked() error {
	if err := makePrivate(); err != nil {
		return err
	}
	if err := mountTmpfs(memory); err != nil {
		return err
	}
	return errors.Join(os.Setenv("TMPDIR", memory), arrive(fmt.Sprint(os.Getpid())))
}
