package supervise

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Call is a call that was counted.
type Call struct {
	// Name is the system call's.
	Name string
	// Path is what it was about to change, as far as that can be told. In a mount that is
	// not visible anywhere it starts at the mount's root.
	Path string
}

func (c Call) String() string { return c.Name + " " + c.Path }

// describe says what a call is about, and whether it counts.
func describe(n *notification, call systemCall, root string) (Call, bool) {
	c := Call{Name: call.name}
	switch call.form {
	case onFD:
		return describeFD(n, call, c)
	case onMount:
		c.Path = pathOf(n, call)
		return c, true
	case onName, executing:
		c.Path = pathOf(n, call)
		return c, true
	}
	c.Path = pathOf(n, call)
	return c, mayWrite(n, call) || relative(n, call) || below(c.Path, root)
}

// describeFD tells apart what a descriptor may be of.
func describeFD(n *notification, call systemCall, c Call) (Call, bool) {
	fd := int32(n.args[call.dir])
	c.Path = descriptor(n.pid, fd)
	if !strings.HasPrefix(c.Path, "/") || fd == 1 || fd == 2 {
		return c, false // a socket, a pipe, or the log
	}
	info, err := os.Stat(procFD(n.pid, fd))
	return c, err == nil && info.Mode()&^fs.ModeDir&fs.ModeType == 0
}

// mayWrite reports whether an open is for more than reading.
func mayWrite(n *notification, call systemCall) bool {
	flags := n.args[call.path+1]
	if call.form == openingHow {
		how, err := readMemory(n.pid, flags, 8)
		if err != nil {
			return true
		}
		flags = binary.NativeEndian.Uint64(how)
	}
	return flags&(unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0
}

// relative reports whether an open starts at a descriptor, be it by the path in /proc
// that stands for one.
func relative(n *notification, call systemCall) bool {
	path := stringAt(n.pid, n.args[call.path])
	if strings.HasPrefix(path, "/") {
		return strings.HasPrefix(path, "/proc/self/fd/")
	}
	return call.dir != none && int32(n.args[call.dir]) != unix.AT_FDCWD
}

// pathOf returns the path that a call names, "" if it names none.
func pathOf(n *notification, call systemCall) string {
	path := ""
	if call.path != none {
		path = stringAt(n.pid, n.args[call.path])
	}
	switch {
	case strings.HasPrefix(path, "/proc/self/fd/"):
		return inProc(n.pid, path)
	case strings.HasPrefix(path, "/"), call.form == onMount && call.dir == none:
		return path // of fsopen and fsconfig it is a word
	}
	dir := int32(unix.AT_FDCWD)
	if call.dir != none {
		dir = int32(n.args[call.dir])
	}
	return filepath.Join(descriptor(n.pid, dir), path)
}

// inProc resolves a path that starts at one of the process's own descriptors.
func inProc(pid uint32, path string) string {
	number, rest, _ := strings.Cut(strings.TrimPrefix(path, "/proc/self/fd/"), "/")
	fd, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		return path
	}
	return filepath.Join(descriptor(pid, int32(fd)), rest)
}

// descriptor returns what a descriptor of the process is of, as /proc shows it.
func descriptor(pid uint32, fd int32) string {
	link := procFD(pid, fd)
	if fd == unix.AT_FDCWD {
		link = fmt.Sprintf("/proc/%d/cwd", pid)
	}
	path, err := os.Readlink(link)
	if err != nil {
		return fmt.Sprint("descriptor ", fd)
	}
	return path
}

func procFD(pid uint32, fd int32) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

func below(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// stringAt reads a string of the process's memory, up to the length of a path; "" if it
// can't.
func stringAt(pid uint32, address uint64) string {
	var text []byte
	page := uint64(os.Getpagesize())
	for address != 0 && len(text) < unix.PathMax {
		// Not over the end of a page: the next one may not be there.
		part, err := readMemory(pid, address, int(page-address%page))
		if err != nil {
			return ""
		}
		if end := bytes.IndexByte(part, 0); end >= 0 {
			return string(append(text, part[:end]...))
		}
		text = append(text, part...)
		address += uint64(len(part))
	}
	return string(text)
}

func readMemory(pid uint32, address uint64, length int) ([]byte, error) {
	buf := make([]byte, length)
	local := []unix.Iovec{{Base: &buf[0]}}
	local[0].SetLen(length)
	n, err := unix.ProcessVMReadv(int(pid), local, []unix.RemoteIovec{{Base: uintptr(address), Len: length}}, 0)
	if err != nil {
		return nil, fmt.Errorf("read the memory of thread %d: %w", pid, err)
	}
	return buf[:n], nil
}
