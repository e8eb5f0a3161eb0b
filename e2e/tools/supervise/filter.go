package supervise

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in the kernel's struct seccomp_data.
const (
	offsetNumber = 0
	offsetArch   = 4
)

// filter returns the program that hands over each of the calls and allows all others.
func filter(calls map[uint32]systemCall) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	// skip goes on where the loaded word is k, and jumps over the next statement
	// elsewhere.
	skip := func(k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: 1}
	}
	// The numbers are those of one architecture.
	program := []unix.SockFilter{
		load(offsetArch),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		ret(unix.SECCOMP_RET_ALLOW),
		load(offsetNumber),
	}
	for _, number := range slices.Sorted(maps.Keys(calls)) {
		program = append(program, skip(number), ret(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(program, ret(unix.SECCOMP_RET_ALLOW))
}

// install gives the calling thread, and what it forks from then on, the filter, and
// returns the descriptor on which the calls arrive.
func install(calls map[uint32]systemCall) (int, error) {
	program := filter(calls)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// A thread whose call has been received is left waiting by all signals but a fatal
	// one: a runtime that interrupts its threads would have the call come again.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, fmt.Errorf("install a seccomp filter (Linux 5.19 and CAP_SYS_ADMIN are needed): %w", errno)
	}
	return int(fd), nil
}

// notification is the kernel's struct seccomp_notif: a thread waits with a call.
type notification struct {
	id     uint64
	pid    uint32
	_      uint32 // flags, always 0
	number int32
	arch   uint32
	_      uint64 // instruction pointer
	args   [6]uint64
}

// response is the kernel's struct seccomp_notif_resp.
type response struct {
	id    uint64
	_     int64 // the call's result, for a call that does not go on
	_     int32 // its error
	flags uint32
}

func receive(listener int, n *notification) error {
	*n = notification{} // the kernel refuses anything else
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
}

// goOn lets a call go on; a thread that has ended meanwhile is no error.
func goOn(listener int, id uint64) error {
	r := response{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	err := ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// waiting reports whether the thread still waits with the call, so that what was read
// of it was its own and not another's under the same number.
func waiting(listener int, id uint64) bool {
	return ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id)) == nil
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}
