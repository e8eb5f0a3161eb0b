package supervise

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// systemCalls returns what the filter hands over: here there are also the calls from
// before those that take a descriptor.
func systemCalls() map[uint32]systemCall {
	calls := commonCalls()
	calls[unix.SYS_OPEN] = systemCall{"open", opening, none, 0}
	for number, name := range map[uint32]string{
		unix.SYS_CREAT:  "creat",
		unix.SYS_MKDIR:  "mkdir",
		unix.SYS_MKNOD:  "mknod",
		unix.SYS_RMDIR:  "rmdir",
		unix.SYS_UNLINK: "unlink",
		unix.SYS_CHMOD:  "chmod",
		unix.SYS_CHOWN:  "chown",
		unix.SYS_LCHOWN: "lchown",
		unix.SYS_UTIME:  "utime",
		unix.SYS_UTIMES: "utimes",
	} {
		calls[number] = systemCall{name, onName, none, 0}
	}
	for number, name := range map[uint32]string{
		unix.SYS_RENAME:  "rename",
		unix.SYS_LINK:    "link",
		unix.SYS_SYMLINK: "symlink",
	} {
		calls[number] = systemCall{name, onName, none, 1}
	}
	return calls
}
