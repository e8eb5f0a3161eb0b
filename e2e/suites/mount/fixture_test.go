// Package mount_test tests pkg/mount with real mounts, in the mount namespace that
// the harness makes for it: as root, or without root in a user namespace too.
package mount_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// denied names a system call, and the error that it shall return, in the environment
// of a run that plays an older kernel or one that grants less.
const denied = "REFVOL_MOUNT_TEST_DENIED"

func TestMain(m *testing.M) {
	if call := os.Getenv(denied); call != "" {
		if err := deny(call); err != nil {
			panic(err)
		}
	}
	os.Exit(harness.Main(m, nil))
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

const driver = "csi.refvol.dev"

// node is a kubelet's directory with a Mounter for it, and a directory beside it.
type node struct {
	testing.TB
	*mount.Mounter
	kubeletDir string
	outside    string
}

// newNode makes a node; whatever is still mounted there at the test's end goes.
func newNode(t testing.TB) *node {
	t.Helper()
	top := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	n := &node{TB: t, kubeletDir: top + "/kubelet", outside: top + "/outside"}
	n.mkdir(n.kubeletDir + "/pods")
	n.mkdir(n.outside)
	t.Cleanup(func() {
		for _, info := range n.mountsBelow(top) {
			_ = unix.Unmount(info.Mountpoint, unix.MNT_DETACH) // it may have gone with its parent
		}
	})
	n.Mounter = must.Get(mount.New(n.ctx(), mount.Options{Driver: driver, KubeletDir: n.kubeletDir}))(t)
	return n
}

// ctx returns a context with a logger that drops everything; it does not end with the test, so that cleaning up works.
func (n *node) ctx() context.Context { return klog.NewContext(context.Background(), klog.Logger{}) }

// target makes the parent of the target path that the kubelet would choose, and returns that path.
func (n *node) target(pod string) string {
	n.Helper()
	parent := filepath.Join(n.kubeletDir, "pods", pod, "volumes/kubernetes.io~csi/v")
	n.mkdir(parent)
	return parent + "/mount"
}

func params(id string) mount.Params {
	return mount.Params{VolumeID: id, Size: 64 << 10, Inodes: 64, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner}
}

// create makes a detached volume; it is closed at the test's end at the latest.
func (n *node) create(id string) *mount.Volume {
	n.Helper()
	v := must.Get(n.Create(n.ctx(), params(id)))(n)
	n.Cleanup(func() { v.Close() })
	return v
}

// publish shows a volume with one file, "version", at target.
func (n *node) publish(id, target string) {
	n.Helper()
	v := n.create(id)
	n.must(v.Root().WriteFile("version", []byte("1"), 0o644))
	n.must(v.Attach(n.ctx(), target))
	n.must(v.Close())
}

// update writes to a published volume as a reconcile does.
func (n *node) update(id, target, content string) error {
	v, err := n.Reopen(n.ctx(), id, target)
	if err != nil {
		return err
	}
	return errors.Join(v.Root().WriteFile("version", []byte(content), 0o644), v.Close())
}

func (n *node) must(err error) {
	n.Helper()
	must.Do(n, err)
}

func (n *node) wantErr(err, want error) {
	n.Helper()
	if !errors.Is(err, want) {
		n.Errorf("got error %v, want %v", err, want)
	}
}

func (n *node) mkdir(path string) {
	n.Helper()
	n.must(os.MkdirAll(path, 0o755))
}

func (n *node) write(path, content string) {
	n.Helper()
	n.must(os.WriteFile(path, []byte(content), 0o644))
}

func (n *node) wantContent(path, want string) {
	n.Helper()
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		n.Errorf("%s: got %q, %v; want %q", path, got, err, want)
	}
}

func (n *node) wantGone(path string) {
	n.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		n.Errorf("%s: got %v, want that it does not exist", path, err)
	}
}

func (n *node) wantEmpty(path string) {
	n.Helper()
	entries, err := os.ReadDir(path)
	if err != nil || len(entries) > 0 {
		n.Errorf("%s: got %v, %v; want an empty directory", path, entries, err)
	}
}

// wantMounts checks the sources of all that is mounted at target, from the lowest.
func (n *node) wantMounts(target string, want ...string) {
	n.Helper()
	var got []string
	for _, info := range n.mountsBelow(target) {
		got = append(got, info.Source)
	}
	if !slices.Equal(got, want) {
		n.Errorf("mounted at %s: %q, want %q", target, got, want)
	}
}

func (n *node) mountsBelow(path string) []*mountinfo.Info {
	n.Helper()
	return must.Get(mountinfo.GetMounts(mountinfo.PrefixFilter(path)))(n)
}

// chargesAttributes says whether attributes count against the limit of inodes, as since Linux 6.6.
func (n *node) chargesAttributes() bool {
	n.Helper()
	n.mountForeign("charges", n.outside+"/charges")
	defer func() {
		n.umount(n.outside + "/charges")
		n.must(os.Remove(n.outside + "/charges"))
	}()
	var before, after unix.Statfs_t
	n.must(unix.Statfs(n.outside+"/charges", &before))
	n.must(unix.Setxattr(n.outside+"/charges", n.AttributePrefix()+"large", make([]byte, 4096), 0))
	n.must(unix.Statfs(n.outside+"/charges", &after))
	return after.Ffree < before.Ffree
}

// mountForeign mounts a tmpfs that another program could have mounted.
func (n *node) mountForeign(source, target string) {
	n.Helper()
	n.mkdir(target)
	n.must(unix.Mount(source, target, "tmpfs", 0, "size=64k"))
}

func (n *node) bind(from, to string) {
	n.Helper()
	n.must(unix.Mount(from, to, "", unix.MS_BIND, ""))
}

func (n *node) umount(target string) {
	n.Helper()
	n.must(unix.Unmount(target, unix.MNT_DETACH))
}

// counts returns how many descriptors are open, and how many mounts there are in the test's directory.
// Mounts elsewhere go with their directories, if somebody removes these outside of this namespace.
func (n *node) counts() [2]int {
	n.Helper()
	fds := must.Get(os.ReadDir("/proc/self/fd"))(n)
	return [2]int{len(fds), len(n.mountsBelow(filepath.Dir(filepath.Dir(n.kubeletDir))))}
}

func (n *node) wantCounts(want [2]int) {
	n.Helper()
	if got := n.counts(); got != want {
		n.Errorf("open descriptors and mounts: %v, want %v", got, want)
	}
}

// again calls f in a goroutine, again and again, until the returned function is called, or the test ends.
func (n *node) again(f func()) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				f()
			}
		}
	})
	stop = sync.OnceFunc(func() { close(done); running.Wait() })
	n.Cleanup(stop)
	return stop
}

// swap exchanges two paths.
func swap(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func source(id string) string { return driver + ":" + id }
