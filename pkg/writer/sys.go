package writer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// fileSystem is every call that changes a volume, and the one that tells how much
// room there is. at and from are descriptors of directories, name is always a
// single path element, and no call follows a symbolic link in it.
type fileSystem interface {
	mkdir(at int, name string) error
	create(at int, name string) (fd int, err error)
	write(fd int, p []byte) (int, error)
	// allocate makes sure that a file can be written up to size bytes, without
	// making it longer.
	allocate(fd int, size int64) error
	truncate(fd int, size int64) error
	chown(fd, uid, gid int) error
	chmod(fd int, mode uint32) error
	// setAttribute sets an extended attribute of a file, or removes it if value is empty.
	setAttribute(fd int, name, value string) error
	link(from, at int, name string) error
	symlink(target string, at int, name string) error
	rename(at int, oldName, newName string) error
	// move renames from one directory to another, with flags of renameat2(2).
	move(from, at int, name string, flags uint) error
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

func (linux) allocate(fd int, size int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size) })
	return err
}

func (linux) truncate(fd int, size int64) error {
	_, err := retry(func() (int, error) { return 0, unix.Ftruncate(fd, size) })
	return err
}

func (linux) chown(fd, uid, gid int) error { return unix.Fchown(fd, uid, gid) }

func (linux) chmod(fd int, mode uint32) error { return unix.Fchmod(fd, mode) }

func (linux) setAttribute(fd int, name, value string) error {
	if value != "" {
		return unix.Fsetxattr(fd, name, []byte(value), 0)
	}
	err := unix.Fremovexattr(fd, name)
	if errors.Is(err, unix.ENODATA) {
		return nil // it is gone already
	}
	return err
}

func (linux) link(from, at int, name string) error {
	return unix.Linkat(from, name, at, name, 0)
}

func (linux) symlink(target string, at int, name string) error {
	return unix.Symlinkat(target, at, name)
}

func (linux) rename(at int, oldName, newName string) error {
	return unix.Renameat(at, oldName, at, newName)
}

func (linux) move(from, at int, name string, flags uint) error {
	return unix.Renameat2(from, name, at, name, flags)
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

// openIn opens a file or a directory of a generation. It goes down step by step, so
// that no link is followed and no path is too long.
func openIn(generation int, path string, flags int) (int, error) {
	dir, name := split(path)
	at, err := openParent(generation, dir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	return open(at, name, flags|unix.O_NONBLOCK)
}

// openParent opens the directory at path in a generation to name what is in it; ""
// is the generation itself.
func openParent(generation int, path string) (int, error) {
	at, err := openPath(generation, ".")
	for name := range strings.SplitSeq(path, "/") {
		if err != nil || path == "" {
			break
		}
		above := at
		at, err = openPath(above, name)
		unix.Close(above)
	}
	return at, err
}

func open(at int, name string, flags int) (int, error) {
	return retry(func() (int, error) {
		return unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
}

// blockSize is the unit of the count of blocks in a file's status.
const blockSize = 512

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
