package supervise

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// systemCall is a call that the filter hands over. path is the index of the argument that points to a path,
// descriptor that of a descriptor through which something is written; none where there is none.
type systemCall struct {
	name             string
	path, descriptor int
}

const none = -1

// systemCalls are the calls by number. Go's own packages make none of those from before the ...at calls.
func systemCalls() map[uint32]systemCall {
	return map[uint32]systemCall{
		unix.SYS_OPENAT:    {"openat", 1, none},
		unix.SYS_OPENAT2:   {"openat2", 1, none},
		unix.SYS_MKDIRAT:   {"mkdirat", 1, none},
		unix.SYS_SYMLINKAT: {"symlinkat", 2, none},
		unix.SYS_LINKAT:    {"linkat", 3, none},
		unix.SYS_UNLINKAT:  {"unlinkat", 1, none},
		unix.SYS_RENAMEAT:  {"renameat", 3, none},
		unix.SYS_RENAMEAT2: {"renameat2", 3, none},
		unix.SYS_FCHMODAT:  {"fchmodat", 1, none},
		unix.SYS_FCHMODAT2: {"fchmodat2", 1, none},
		unix.SYS_FCHOWNAT:  {"fchownat", 1, none},
		unix.SYS_UTIMENSAT: {"utimensat", 1, none},

		unix.SYS_WRITE:           {"write", none, 0},
		unix.SYS_PWRITE64:        {"pwrite64", none, 0},
		unix.SYS_WRITEV:          {"writev", none, 0},
		unix.SYS_SENDFILE:        {"sendfile", none, 0},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", none, 2},
		unix.SYS_SPLICE:          {"splice", none, 2},
		unix.SYS_FTRUNCATE:       {"ftruncate", none, 0},
		unix.SYS_FALLOCATE:       {"fallocate", none, 0},
		unix.SYS_FCHMOD:          {"fchmod", none, 0},
		unix.SYS_FCHOWN:          {"fchown", none, 0},
		unix.SYS_FSETXATTR:       {"fsetxattr", none, 0},
		unix.SYS_FREMOVEXATTR:    {"fremovexattr", none, 0},

		unix.SYS_FSOPEN:        {"fsopen", 0, none},
		unix.SYS_FSCONFIG:      {"fsconfig", 2, none},
		unix.SYS_FSMOUNT:       {"fsmount", none, none},
		unix.SYS_OPEN_TREE:     {"open_tree", 1, none},
		unix.SYS_MOUNT_SETATTR: {"mount_setattr", 1, none},
		unix.SYS_MOVE_MOUNT:    {"move_mount", 3, none},
		unix.SYS_MOUNT:         {"mount", 1, none},
		unix.SYS_UMOUNT2:       {"umount2", 0, none},
	}
}

// Call is a call that was counted.
type Call struct {
	// Name is the system call's.
	Name string
	// Path is the path that it was given, or what its descriptor is of.
	Path string
}

func (c Call) String() string { return c.Name + " " + c.Path }

// describe says what a call is about, and whether it counts.
func describe(n *notification, call systemCall) (Call, bool) {
	c := Call{Name: call.name}
	if call.path != none {
		c.Path = stringAt(n.pid, n.args[call.path])
	}
	if call.descriptor == none {
		return c, true
	}
	fd := int32(n.args[call.descriptor])
	link := fmt.Sprintf("/proc/%d/fd/%d", n.pid, fd)
	c.Path, _ = os.Readlink(link)
	info, err := os.Stat(link)
	// Not a socket, a pipe or an eventfd, of which the link is no path, nor the log.
	return c, err == nil && (info.IsDir() || info.Mode().IsRegular()) && strings.HasPrefix(c.Path, "/") && fd != 1 && fd != 2
}

// stringAt reads a string of the process's memory, up to the length of a path; "" if it can't.
func stringAt(pid uint32, address uint64) string {
	var text []byte
	for address != 0 && len(text) < unix.PathMax {
		// Not over the end of a page: the next one may not be there.
		part := make([]byte, 4096-address%4096)
		local := []unix.Iovec{{Base: &part[0]}}
		local[0].SetLen(len(part))
		n, err := unix.ProcessVMReadv(int(pid), local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(part)}}, 0)
		if err != nil {
			return ""
		}
		if end := bytes.IndexByte(part[:n], 0); end >= 0 {
			return string(append(text, part[:end]...))
		}
		text = append(text, part[:n]...)
		address += uint64(n)
	}
	return string(text)
}
