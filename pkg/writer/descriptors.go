package writer

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// noDescriptor is what system calls return for a descriptor where there is none.
const noDescriptor = -1

// openRoot opens dir itself. O_NONBLOCK saves system calls: without it, package os needs six to find out that a directory cannot be polled.
func openRoot(dir *os.Root) (*os.File, error) {
	root, err := dir.OpenFile(".", unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the volume's root: %w", err)
	}
	return root, nil
}

// openAt opens a path of any length below a directory. It follows no link, never blocks, and never leaves the directory.
func openAt(dir int, path string, flags uint64) (int, error) {
	if flags&(unix.O_DIRECTORY|unix.O_PATH) == 0 {
		flags |= unix.O_NONBLOCK // the file may be a pipe, or under a lease
	}
	return unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
}

// isAbsent reports whether an error of openAt means that the file or directory does not exist.
func isAbsent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// readDir returns the entries of a directory below another one.
func readDir(at int, path string) ([]fs.DirEntry, error) {
	fd, err := openAt(at, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	return dir.ReadDir(-1)
}

func readLink(at int, name string) (string, error) {
	buf := make([]byte, len(linkPrefix)+unix.NAME_MAX+1) // a longer target is not one of ours
	n, err := unix.Readlinkat(at, name, buf)
	return string(buf[:max(n, 0)]), err
}

// dirs provides descriptors of a generation's directories, one at a time, to a caller that visits its files in order. An operation on a
// name of one element cannot lead anywhere else.
type dirs struct {
	top, fd int
	name    string
}

func newDirs(generation int) *dirs { return &dirs{top: generation, fd: noDescriptor} }

// at returns the directory of a path, which stays open until the next call, and the path's last element.
func (d *dirs) at(p string) (fd int, last string, err error) {
	dir, last := path.Split(p)
	if dir == "" {
		return d.top, last, nil
	}
	if d.fd == noDescriptor || d.name != dir {
		d.close()
		if d.fd, err = openAt(d.top, dir, unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return noDescriptor, "", fmt.Errorf("open directory %s: %w", dir, err)
		}
		d.name = dir
	}
	return d.fd, last, nil
}

func (d *dirs) close() {
	if d.fd != noDescriptor {
		unix.Close(d.fd)
	}
	d.fd = noDescriptor
}

// walk calls visit for each entry of a generation that is not a directory. Somebody else may have nested directories there, so it goes no
// deeper than the longest path, and holds one descriptor.
func walk(generation int, dir string, visit func(path string, e fs.DirEntry) error) error {
	entries, err := readDir(generation, dir)
	if errors.Is(err, unix.ENAMETOOLONG) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list directory %s: %w", dir, err)
	}
	for _, e := range entries {
		p := path.Join(dir, e.Name())
		if e.IsDir() {
			err = walk(generation, p, visit)
		} else {
			err = visit(p, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// setAttrs sets the owner and then the mode of an open file or directory. A change of owner clears bits of the mode.
func setAttrs(fd int, a attrs) error {
	if a.uid >= 0 || a.gid >= 0 {
		if err := unix.Fchown(fd, a.uid, a.gid); err != nil {
			return fmt.Errorf("set owner %d:%d: %w", a.uid, a.gid, err)
		}
	}
	if err := unix.Fchmod(fd, a.mode); err != nil {
		return fmt.Errorf("set mode %04o: %w", a.mode, err)
	}
	return nil
}

func statAttrs(fd int) (attrs, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return attrs{}, err
	}
	return attrsOf(&st), nil
}

func attrsOf(st *unix.Stat_t) attrs { return attrs{st.Mode & 0o7777, int(st.Uid), int(st.Gid)} }

// setDir calls set for a directory if its mode or owner is not the wanted one.
func setDir(at int, name string, want attrs, set func(fd int, have, want attrs) error) error {
	fd, err := at, error(nil)
	if name != "." {
		if fd, err = openAt(at, name, unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
			defer unix.Close(fd)
		}
	}
	if err == nil {
		var have attrs
		if have, err = statAttrs(fd); err == nil && !want.isSatisfiedBy(have) {
			err = set(fd, have, want)
		}
	}
	if err != nil {
		return fmt.Errorf("directory %s: %w", name, err)
	}
	return nil
}

// widen ends a change of a directory, and narrow begins it. In between nobody has access who may not have it in the end.
func widen(fd int, _, want attrs) error     { return setAttrs(fd, want) }
func narrow(fd int, have, want attrs) error { return unix.Fchmod(fd, have.between(want)) }
