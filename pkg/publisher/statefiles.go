package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the state directory holds may have been put there by anybody with root, as a link, a
// pipe or a directory with something mounted in it. The functions here touch nothing that
// such a thing leads to.

// writeNew makes a file. In place of one that is there it makes another, and never writes
// through a link or waits for the reader of a pipe.
func writeNew(dir *os.Root, name string, text []byte) error {
	const flags = os.O_WRONLY | os.O_CREATE | os.O_EXCL
	f, err := dir.OpenFile(name, flags, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if err := removeFile(dir, name); err != nil {
			return err
		}
		f, err = dir.OpenFile(name, flags, 0o600)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

const (
	// atomicSize is how much the kernel takes in one piece, a page at least: between pages a
	// kill may cut a write short.
	atomicSize = 4096
	// padSize has a text keep its length when a number in it grows.
	padSize = 512
)

// padded returns a JSON text with so many blanks at its end that later ones can take its
// place.
func padded(text []byte) []byte {
	size := (len(text) + padSize - 1) / padSize * padSize
	return append(text, bytes.Repeat([]byte{' '}, size-len(text))...)
}

// overwrite writes a text over the one of the same size that a file holds, and returns false
// if that is not such a file, or can't be done in one piece. To make a new file instead takes
// several times as long in memory, and far longer on a disk.
func overwrite(dir *os.Root, name string, text []byte) bool {
	if len(text) > atomicSize {
		return false
	}
	found, err := dir.Lstat(name)
	if err != nil || !isOwn(found) || found.Size() != int64(len(text)) {
		return false
	}
	// Should it have been replaced just now, opening it must not wait all the same.
	f, err := dir.OpenFile(name, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	opened, err := f.Stat()
	if err == nil && os.SameFile(found, opened) && !isMounted(f) {
		_, err = f.WriteAt(text, 0)
	} else {
		err = errDamaged
	}
	return errors.Join(err, f.Close()) == nil
}

// isMounted says whether a file stands in the place of the directory's own.
func isMounted(f *os.File) bool {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, 0, &st)
	return err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// isOwn says whether a file is as writeNew makes it, and known by no other name.
func isOwn(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode() == 0o600 && st.Nlink == 1 && int(st.Uid) == os.Geteuid()
}

// removeFile removes a file or an empty directory; nothing there is success.
func removeFile(dir *os.Root, name string) error {
	if err := dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeTree removes a file, or a directory with what is in it, but nothing of what is
// mounted there: the kernel refuses to remove a mount point before it looks whether the
// directory is empty, and only what it calls not empty is entered.
func removeTree(dir *os.Root, name string) error {
	err := removeFile(dir, name)
	if !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	names, err := namesIn(dir, name)
	for _, inside := range names {
		err = errors.Join(err, removeTree(dir, path.Join(name, inside)))
	}
	if err != nil {
		return err
	}
	return removeFile(dir, name)
}

func namesIn(dir *os.Root, name string) (names []string, err error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Readdirnames(-1)
}

// readRegular reads a file, and nothing that waits for somebody to write to it or leads
// elsewhere.
func readRegular(dir *os.Root, name string) (text []byte, err error) {
	info, err := dir.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: must be a regular file, is %v", errDamaged, info.Mode().Type())
	case info.Size() > maxRecord:
		return nil, fmt.Errorf("%w: has %d bytes, more than %d", errDamaged, info.Size(), maxRecord)
	}
	// Should it have been replaced just now, opening it must not wait all the same.
	f, err := dir.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, maxRecord))
}
