package writer

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// fileSystem is every call that changes a volume, and the one that tells how much
// room there is. at and from are descriptors of directories, name is always a
// single path element, and no call follows a symbolic link in it.
type fileSystem interface {
	mkdir(at int, name string) error
	create(at int, name string) (fd int, err error)
	write(fd int, p []byte) (int, error)
	chown(fd, uid, gid int) error
	chmod(fd int, mode uint32) error
	link(from, at int, name string) error
	symlink(target string, at int, name string) error
	rename(at int, oldName, newName string) error
	unlink(at int, name string) error
	rmdir(at int, name string) error
	statfs(fd int) (unix.Statfs_t, error)
}

// linux is the fileSystem of the running kernel.
type linux struct{}

// Directories and files start closed to everyone else, and get their real mode
// once they have their content and owner.
const (
	newDirMode  = 0o700
	newFileMode = 0o600
)

func (linux) mkdir(at int, name string) error {
	return unix.Mkdirat(at, name, newDirMode)
}

func (linux) create(at int, name string) (int, error) {
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	return retry(func() (int, error) { return unix.Openat(at, name, flags, newFileMode) })
}

func (linux) write(fd int, p []byte) (int, error) {
	return retry(func() (int, error) { return unix.Write(fd, p) })
}

func (linux) chown(fd, uid, gid int) error { return unix.Fchown(fd, uid, gid) }

func (linux) chmod(fd int, mode uint32) error { return unix.Fchmod(fd, mode) }

func (linux) link(from, at int, name string) error {
	return unix.Linkat(from, name, at, name, 0)
}

func (linux) symlink(target string, at int, name string) error {
	return unix.Symlinkat(target, at, name)
}

func (linux) rename(at int, oldName, newName string) error {
	return unix.Renameat(at, oldName, at, newName)
}

func (linux) unlink(at int, name string) error { return unix.Unlinkat(at, name, 0) }

func (linux) rmdir(at int, name string) error {
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

func (linux) statfs(fd int) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(fd, &st)
	return st, err
}

// openDir opens a directory for reading its names and changing its mode.
func openDir(at int, name string) (int, error) {
	return open(at, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openPath opens a directory that only serves to name what is in it.
func openPath(at int, name string) (int, error) {
	return open(at, name, unix.O_PATH|unix.O_DIRECTORY)
}

// openAny opens a file or a directory for reading; of anything else it never
// waits for the other end.
func openAny(at int, name string) (int, error) {
	return open(at, name, unix.O_RDONLY|unix.O_NONBLOCK)
}

func open(at int, name string, flags int) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// dirent is an entry of a directory: its name, and the number of what it names.
type dirent struct {
	name  string
	inode uint64
}

// readDir returns the entries of a directory whose descriptor has not been read
// from yet, without . and .., in the order of the file system.
func readDir(fd int) ([]dirent, error) {
	buf := make([]byte, 8<<10)
	var entries []dirent
	for {
		n, err := retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return entries, err
		}
		entries = appendDirents(entries, buf[:n])
	}
}

// appendDirents parses records of getdents64(2): inode (8 bytes), offset (8),
// length of the record (2), type (1), name, zero bytes.
func appendDirents(entries []dirent, buf []byte) []dirent {
	for len(buf) > 0 {
		record := buf[:binary.NativeEndian.Uint16(buf[16:])]
		buf = buf[len(record):]
		name, _, _ := bytes.Cut(record[19:], []byte{0})
		if s := string(name); s != "." && s != ".." {
			entries = append(entries, dirent{s, binary.NativeEndian.Uint64(record)})
		}
	}
	return entries
}

// retry repeats a call that a signal cut short.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
