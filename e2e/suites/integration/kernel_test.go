package integration

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// denied returns what has a system call fail for all that is forked afterwards, as on a
// kernel that lacks it; with a second argument, only calls that have it.
func denied(call uint32, errno unix.Errno, second ...uint32) (beforeFork func() error) {
	const number, secondArgument = 0, 24 // in struct seccomp_data
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	// unless goes on where the loaded word is k, and allows the call elsewhere.
	unless := func(k uint32) []unix.SockFilter {
		return []unix.SockFilter{{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: 1}, ret(unix.SECCOMP_RET_ALLOW)}
	}
	filter := append([]unix.SockFilter{load(number)}, unless(call)...)
	for _, argument := range second {
		filter = append(append(filter, load(secondArgument)), unless(argument)...)
	}
	filter = append(filter, ret(unix.SECCOMP_RET_ERRNO|uint32(errno)))
	return func() error {
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("deny a system call: %w", err)
		}
		_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
		runtime.KeepAlive(filter)
		if failed != 0 {
			return fmt.Errorf("deny a system call: %w", failed)
		}
		return nil
	}
}

// On a kernel before 5.12, or one that plays such a one, the plugin doesn't start, and says why.
func TestKernelTooOld(t *testing.T) {
	o := harness.PluginOptions{Binary: shared.plugin, Kubeconfig: shared.kubeconfig, Dir: nodeDir(t)}
	if err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{}); !errors.Is(err, unix.ENOSYS) {
		o.BeforeFork = denied(unix.SYS_MOUNT_SETATTR, unix.ENOSYS)
	}
	var system unix.Utsname
	if err := unix.Uname(&system); err != nil {
		t.Fatal(err)
	}
	p, err := harness.StartPlugin(t.Context(), o)
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	want := "the kernel is too old: Linux 5.12 or newer is needed, this is " + unix.ByteSliceToString(system.Release[:])
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("start: %v, want an end of which the log says %q", err, want)
	}
	if code := p.Process().ExitCode(); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
}

// takesNoswap says whether a tmpfs can be kept out of swap here: since Linux 6.4, and not in
// a user namespace.
func takesNoswap(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("none", dir, "tmpfs", 0, "noswap")
	if errors.Is(err, unix.EINVAL) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	return true
}

// Without noswap there is one warning a start, and all else is the same.
func TestKernelWithoutNoswap(t *testing.T) {
	for name, o := range map[string]harness.PluginOptions{
		"this kernel":  {},
		"an older one": {BeforeFork: denied(unix.SYS_FSCONFIG, unix.EINVAL, unix.FSCONFIG_SET_FLAG)},
	} {
		t.Run(name, func(t *testing.T) {
			o.Kubeconfig = shared.kubeconfig
			n := newNodeWith(t, o)
			noswap := o.BeforeFork == nil && takesNoswap(t)
			n.value("app")
			v := n.published("app")
			mounts, err := n.VolumeMounts()
			if err != nil || len(mounts) != 1 {
				t.Fatalf("the mounts are %v, %v, want one", mounts, err)
			}
			if has := strings.Contains(","+mounts[0].SuperOptions+",", ",noswap,"); has != noswap {
				t.Errorf("the options are %s, want noswap: %t", mounts[0].SuperOptions, noswap)
			}
			n.mustKill()
			n.mustStart()
			value := n.value("app")
			n.arrives(v, "key", value, soon)
			n.mustUnpublish(v)
			n.wantNothingLeft()

			log := n.log()
			want := 2 // of two starts
			if noswap {
				want = 0
			}
			const warning = "Warning: this kernel refuses noswap here, so values may reach a swap device; turn swap off or encrypt it"
			if got := strings.Count(string(log), warning); got != want {
				t.Errorf("%d warnings in the log, want %d", got, want)
			}
		})
	}
}
