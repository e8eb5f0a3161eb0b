package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Directories for mounts are made in the volume's root and never removed or replaced. A container's mount may be on one of them, in a mount
// namespace that is not visible from here. In a generation they would be removed with it. In place there is only one generation, which
// stays, so directories for mounts may be in it: tree.Inner.

// addDirectories adds the directories for mounts to a shape that has all files.
func (s *shape) addDirectories(tree *volume.Payload) error {
	for _, p := range slices.Concat(tree.Directories, tree.Inner) {
		if !isSafe(p) {
			return unsafePath(p)
		}
	}
	for _, p := range tree.Inner {
		s.tops[topOf(p)] = true
		for ; p != "."; p = path.Dir(p) {
			if _, known := s.entries[p]; known {
				break
			}
			s.dirs = append(s.dirs, p)
			s.entries[p] = 0
		}
	}
	for _, p := range tree.Directories {
		if s.tops[topOf(p)] {
			return fmt.Errorf("path %q: is a directory for mounts, and %q has files", p, topOf(p))
		}
		for ; p != "."; p = path.Dir(p) {
			s.mountDirs = append(s.mountDirs, p)
		}
	}
	slices.Sort(s.mountDirs)
	s.mountDirs = slices.Compact(s.mountDirs)
	return nil
}

// isSafe reports whether a path stays in a generation, or in the root beside it.
func isSafe(p string) bool {
	return fs.ValidPath(p) && p != "." && !strings.HasPrefix(p, "..") && strings.IndexByte(p, 0) < 0
}

func unsafePath(p string) error {
	return fmt.Errorf(`path %q: must be clean, relative, and not start with ".."`, p)
}

// hasDirectories reports whether all directories for mounts exist.
func (u *update) hasDirectories() bool {
	return u.countMissing() == 0 && !slices.ContainsFunc(u.tree.Inner, func(p string) bool { return !isDir(u.old, p) })
}

// countMissing returns the number of directories for mounts that do not exist in the root.
func (u *update) countMissing() (n int) {
	for _, p := range u.mountDirs {
		if !isDir(u.root, p) {
			n++
		}
	}
	return n
}

// isDir reports whether a path below a directory is a directory, with no link on the way.
func isDir(at int, p string) bool {
	fd, err := openAt(at, p, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		unix.Close(fd)
	}
	return err == nil
}

// makeDirectories makes the missing directories for mounts in the root. A file or link in their place is removed.
func (u *update) makeDirectories() error {
	at := newDirs(u.root)
	defer at.close()
	for _, p := range u.mountDirs {
		if !isDir(u.root, p) {
			u.result.Changed = true
			dir, last, err := at.at(p)
			if err == nil {
				if err = unix.Unlinkat(dir, last, 0); err == nil || errors.Is(err, unix.ENOENT) {
					err = unix.Mkdirat(dir, last, 0o700)
				}
			}
			if err != nil {
				return fmt.Errorf("create directory %s: %w", p, err)
			}
		}
		if err := setDir(u.root, p, dirAttrs(u.tree), widen); err != nil {
			return err
		}
	}
	return nil
}

// addDirectories counts the directories for mounts.
func (m *Footprint) addDirectories(tree *volume.Payload) {
	counted := map[string]bool{}
	for _, p := range slices.Concat(tree.Directories, tree.Inner) {
		for ; p != "." && !counted[p]; p = path.Dir(p) {
			counted[p] = true
			m.Inodes++
		}
	}
	tops := map[string]bool{}
	for _, p := range tree.Inner {
		if top := topOf(p); !tops[top] {
			tops[top] = true
			m.Inodes++
			m.Bytes += linkPages(top) * int64(os.Getpagesize())
		}
	}
}
