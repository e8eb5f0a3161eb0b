package mount

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// noDescriptor is what system calls return for a descriptor where there is none.
const noDescriptor = -1

// target is a path below the kubelet's directory that is resolved up to its parent. It holds the parent's descriptor. All operations at the
// target are relative to that.
type target struct {
	parent int
	name   string
}

// relative returns path relative to dir. Both are absolute. It touches no file.
func relative(dir, path string) (string, error) {
	if !filepath.IsAbs(path) || slices.Contains(strings.Split(path, "/"), "..") || strings.ContainsRune(path, 0) {
		return "", fmt.Errorf(`target must be an absolute path without ".." and zero bytes: %w`, ErrOutside)
	}
	rel, err := filepath.Rel(dir, filepath.Clean(path))
	if err != nil || rel == "." || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("target must be below %s: %w", dir, ErrOutside)
	}
	return rel, nil
}

// resolve opens the parent of the target path. The error matches ErrOutside, or fs.ErrNotExist if the parent does not exist.
func (m *Mounter) resolve(path string) (*target, error) {
	rel, err := relative(m.kubeletDir, path)
	if err != nil {
		return nil, err
	}
	dir, err := openKubeletDir(m.kubeletDir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	parent, err := openBeneath(dir, filepath.Dir(rel), unix.O_DIRECTORY)
	if err != nil {
		return nil, fmt.Errorf("open the target's parent: %w", err)
	}
	return &target{parent: parent, name: filepath.Base(rel)}, nil
}

func (t *target) close() { unix.Close(t.parent) }

// open returns an O_PATH descriptor of the target as it is now: the uppermost mount there, or the directory or file itself.
func (t *target) open() (int, error) {
	fd, err := openBeneath(t.parent, t.name, 0)
	if err != nil {
		return noDescriptor, fmt.Errorf("open the target: %w", err)
	}
	return fd, nil
}

// mkdir makes the target's directory. made is false if something exists there already.
func (t *target) mkdir() (made bool, err error) {
	// The mount hides this directory, so its mode is only a second line of defence.
	err = unix.Mkdirat(t.parent, t.name, 0o750)
	switch {
	case errors.Is(err, unix.EEXIST):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("make the target's directory: %w", err)
	}
	return true, nil
}

// rmdir removes the target's directory if it is empty.
func (t *target) rmdir() error {
	err := unix.Unlinkat(t.parent, t.name, unix.AT_REMOVEDIR)
	switch {
	case err == nil, isOneOf(err, unix.ENOENT):
		return nil
	case isOneOf(err, unix.ENOTEMPTY, unix.EEXIST, unix.ENOTDIR, unix.EBUSY):
		return fmt.Errorf("remove the target's directory: %w: %w", ErrForeign, err)
	}
	return fmt.Errorf("remove the target's directory: %w", err)
}

// openKubeletDir opens the kubelet's directory, the only one whose path may have symbolic links.
func openKubeletDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noDescriptor, fmt.Errorf("open the kubelet's directory %s: %w", path, err)
	}
	return fd, nil
}

// openBeneath opens path below dir with O_PATH. It crosses mounts, because pods' directories hold mounts. It refuses symbolic links with
// ErrOutside. If the parent is not a directory, or the path is too long, the error is fs.ErrNotExist.
func openBeneath(dir int, path string, flags uint64) (int, error) {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case err == nil:
		return fd, nil
	case isOneOf(err, unix.ELOOP, unix.EXDEV):
		return noDescriptor, fmt.Errorf("a symbolic link is in the way: %w", ErrOutside)
	case isOneOf(err, unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG):
		return noDescriptor, fmt.Errorf("%w (%w)", fs.ErrNotExist, err)
	}
	return noDescriptor, err
}

func isOneOf(err error, errnos ...unix.Errno) bool {
	return slices.ContainsFunc(errnos, func(errno unix.Errno) bool { return errors.Is(err, errno) })
}

// checkFree returns nil if fd is an empty directory with no mount on it.
func (m *Mounter) checkFree(fd int, volumeID string) error {
	err := m.prove(fd, volumeID)
	switch {
	case err == nil:
		return fmt.Errorf("the volume is mounted there already: %w", fs.ErrExist)
	case !errors.Is(err, ErrNotMounted):
		return err
	}
	return checkEmptyDir(fd)
}

func checkEmptyDir(fd int) error {
	readable, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("the target is not a directory: %w", ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("open the target's directory: %w", err)
	}
	dir := os.NewFile(uintptr(readable), "target")
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if err == nil {
		return fmt.Errorf("the target's directory is not empty: %w", ErrForeign)
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the target's directory: %w", err)
	}
	return nil
}
