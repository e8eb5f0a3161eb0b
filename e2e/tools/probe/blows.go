package main

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// blow is one kind of attack.
type blow struct {
	name string
	// strike changes the file, or its directory, and returns nil if it could.
	strike func(dir, file string) error
}

// fileAttacks returns those that change a file.
func fileAttacks() []blow {
	return []blow{
		{"open-write", opening(unix.O_WRONLY)},
		{"open-create-truncate", opening(unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC)},
		{"open-read-truncate", func(_, file string) error { return withFile(file, unix.O_TRUNC, nothing) }},
		{"truncate", func(_, file string) error { return unix.Truncate(file, 1) }},
		{"chmod", func(_, file string) error { return unix.Chmod(file, 0o666) }},
		{"chown-descriptor", func(_, file string) error {
			return withFile(file, unix.O_RDONLY, func(fd int) error { return unix.Fchown(fd, unix.Getuid(), unix.Getgid()) })
		}},
		{"setxattr", func(_, file string) error { return unix.Setxattr(file, "user.hostile", []byte("1"), 0) }},
		{"utimensat", func(_, file string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0)
		}},
		{"reopen-descriptor", reopening(unix.O_RDONLY)},
		{"reopen-path-descriptor", reopening(unix.O_PATH)},
		{"mmap-shared", func(_, file string) error { return withWritable(file, mapShared) }},
		{"ioctl-setflags", func(_, file string) error { return withFile(file, unix.O_RDONLY, setNoDump) }},
	}
}

// dirAttacks returns those that change a directory.
func dirAttacks() []blow {
	return []blow{
		{"create", func(dir, _ string) error {
			return withFile(dir+"/hostile", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, nothing)
		}},
		{"create-nameless", func(dir, _ string) error { return withFile(dir, unix.O_TMPFILE|unix.O_RDWR, nothing) }},
		{"rename", func(dir, file string) error { return unix.Rename(file, dir+"/hostile") }},
		{"link", func(dir, file string) error {
			return unix.Linkat(unix.AT_FDCWD, file, unix.AT_FDCWD, dir+"/hostile", unix.AT_SYMLINK_FOLLOW)
		}},
		{"symlink", func(dir, _ string) error { return unix.Symlink("/proc/self/root", dir+"/hostile") }},
		{"unlink", func(_, file string) error { return unix.Unlink(file) }},
		{"mkdir", func(dir, _ string) error { return unix.Mkdir(dir+"/hostile", 0o777) }},
		{"mknod-fifo", func(dir, _ string) error { return unix.Mknod(dir+"/hostile", unix.S_IFIFO|0o666, 0) }},
		{"chmod-directory", func(dir, _ string) error { return unix.Chmod(dir, 0o777) }},
		{"rewrite-current", func(dir, _ string) error {
			if err := unix.Symlink("/proc/self/root", dir+"/..data_tmp"); err != nil {
				return err
			}
			return unix.Rename(dir+"/..data_tmp", dir+"/..data")
		}},
	}
}

func nothing(int) error { return nil }

// opening writes to a file that it opens so.
func opening(flags int) func(string, string) error {
	return func(_, file string) error { return withFile(file, flags, writeByte) }
}

// reopening opens a file so, and then by that descriptor for writing.
func reopening(flags int) func(string, string) error {
	return func(_, file string) error {
		return withFile(file, flags, func(fd int) error {
			return withFile("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDWR, writeByte)
		})
	}
}

func writeByte(fd int) error {
	_, err := unix.Write(fd, []byte("!"))
	return err
}

// withFile calls f with a file that it opens.
func withFile(path string, flags int, f func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// withWritable opens a file for writing, or else for reading.
func withWritable(path string, f func(fd int) error) error {
	if err := withFile(path, unix.O_RDWR, nothing); err != nil {
		return withFile(path, unix.O_RDONLY, f)
	}
	return withFile(path, unix.O_RDWR, f)
}

// mapShared writes to a file by way of memory. That another attack has truncated the file
// meanwhile is a fault of the write; the file was there to be written to all the same.
func mapShared(fd int) (err error) {
	memory, err := unix.Mmap(fd, 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Munmap(memory)) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	memory[0] = '!'
	return nil
}

// setNoDump sets the one flag of a file that its owner may set everywhere.
func setNoDump(fd int) error {
	const noDump = 0x40
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS) // of the others a file system may not let go
	if err != nil {
		return err
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|noDump))
}

// byHandle opens a file for writing by the number that its file system knows it by.
func byHandle(file string) error {
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return fmt.Errorf("no handle: %w", err)
	}
	return withFile(file, unix.O_RDONLY, func(at int) error {
		fd, err := unix.OpenByHandleAt(at, handle, unix.O_RDWR)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return writeByte(fd)
	})
}
