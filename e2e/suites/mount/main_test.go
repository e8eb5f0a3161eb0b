// Package mount_test tests pkg/mount with real mounts, in the mount namespace that
// the harness makes for it: as root, or without root in a user namespace too.
package mount_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// denied names a system call, and the error that it shall return, in the environment
// of a run that plays an older kernel or one that grants less.
const denied = "REFVOL_MOUNT_TEST_DENIED"

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		var err error
		if call := os.Getenv(denied); call != "" {
			err = deny(call)
		}
		return func() error { return nil }, err
	}))
}

// denial names a system call that fails with an error.
func denial(call int, err unix.Errno) string { return fmt.Sprintf("%d=%d", call, err) }

// deny makes a system call fail from now on, on all threads. It takes a denial.
func deny(call string) error {
	var number, errno uint32
	if _, err := fmt.Sscanf(call, "%d=%d", &number, &errno); err != nil {
		return fmt.Errorf("deny %s: %w", call, err)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: number},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("deny %s: %w", call, err)
	}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return fmt.Errorf("deny %s: %w", call, e)
	}
	return nil
}
