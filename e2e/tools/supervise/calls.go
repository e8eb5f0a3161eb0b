package supervise

import "golang.org/x/sys/unix"

// form is how a system call says what it is done to, and so whether it is counted.
type form int

const (
	// onName changes something that it finds by a name.
	onName form = iota
	// onFD changes something by a descriptor, which may be of anything.
	onFD
	// opening has its flags in the argument after the path; openingHow has a pointer to
	// a struct open_how there.
	opening
	openingHow
	// onMount concerns mounts.
	onMount
	// executing runs a program. It is handed over only where its name was asked for.
	executing
)

// none stands for an argument that a call does not have.
const none = -1

// systemCall is a call that the filter hands over. dir and path are the indexes of the
// arguments that tell what it changes: a descriptor and a pointer to a path.
type systemCall struct {
	name      string
	form      form
	dir, path int
}

// commonCalls are those that every architecture has, by number.
func commonCalls() map[uint32]systemCall {
	return map[uint32]systemCall{
		unix.SYS_OPENAT:  {"openat", opening, 0, 1},
		unix.SYS_OPENAT2: {"openat2", openingHow, 0, 1},

		unix.SYS_EXECVE:   {"execve", executing, none, 0},
		unix.SYS_EXECVEAT: {"execveat", executing, 0, 1},

		unix.SYS_MKDIRAT:   {"mkdirat", onName, 0, 1},
		unix.SYS_MKNODAT:   {"mknodat", onName, 0, 1},
		unix.SYS_SYMLINKAT: {"symlinkat", onName, 1, 2},
		unix.SYS_LINKAT:    {"linkat", onName, 2, 3},
		unix.SYS_UNLINKAT:  {"unlinkat", onName, 0, 1},
		unix.SYS_RENAMEAT:  {"renameat", onName, 2, 3},
		unix.SYS_RENAMEAT2: {"renameat2", onName, 2, 3},
		unix.SYS_TRUNCATE:  {"truncate", onName, none, 0},
		unix.SYS_FCHMODAT:  {"fchmodat", onName, 0, 1},
		unix.SYS_FCHMODAT2: {"fchmodat2", onName, 0, 1},
		unix.SYS_FCHOWNAT:  {"fchownat", onName, 0, 1},
		unix.SYS_UTIMENSAT: {"utimensat", onName, 0, 1},

		unix.SYS_WRITE:           {"write", onFD, 0, none},
		unix.SYS_PWRITE64:        {"pwrite64", onFD, 0, none},
		unix.SYS_WRITEV:          {"writev", onFD, 0, none},
		unix.SYS_PWRITEV:         {"pwritev", onFD, 0, none},
		unix.SYS_PWRITEV2:        {"pwritev2", onFD, 0, none},
		unix.SYS_SENDFILE:        {"sendfile", onFD, 0, none},
		unix.SYS_COPY_FILE_RANGE: {"copy_file_range", onFD, 2, none},
		unix.SYS_SPLICE:          {"splice", onFD, 2, none},
		unix.SYS_FTRUNCATE:       {"ftruncate", onFD, 0, none},
		unix.SYS_FALLOCATE:       {"fallocate", onFD, 0, none},
		unix.SYS_FCHMOD:          {"fchmod", onFD, 0, none},
		unix.SYS_FCHOWN:          {"fchown", onFD, 0, none},
		unix.SYS_FSETXATTR:       {"fsetxattr", onFD, 0, none},
		unix.SYS_FREMOVEXATTR:    {"fremovexattr", onFD, 0, none},

		unix.SYS_FSOPEN:        {"fsopen", onMount, none, 0},
		unix.SYS_FSCONFIG:      {"fsconfig", onMount, none, 2},
		unix.SYS_FSMOUNT:       {"fsmount", onMount, none, none},
		unix.SYS_FSPICK:        {"fspick", onMount, 0, 1},
		unix.SYS_OPEN_TREE:     {"open_tree", onMount, 0, 1},
		unix.SYS_MOUNT_SETATTR: {"mount_setattr", onMount, 0, 1},
		unix.SYS_MOVE_MOUNT:    {"move_mount", onMount, 2, 3},
		unix.SYS_MOUNT:         {"mount", onMount, none, 1},
		unix.SYS_UMOUNT2:       {"umount2", onMount, none, 0},
		unix.SYS_PIVOT_ROOT:    {"pivot_root", onMount, none, 0},
	}
}
