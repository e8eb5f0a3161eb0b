package mount_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

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
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &node{TB: t, kubeletDir: top + "/kubelet", outside: top + "/outside"}
	n.mkdir(n.kubeletDir + "/pods")
	n.mkdir(n.outside)
	t.Cleanup(func() {
		for _, info := range n.mountsBelow(top) {
			_ = unix.Unmount(info.Mountpoint, unix.MNT_DETACH) // it may have gone with its parent
		}
	})
	n.Mounter, err = mount.New(n.ctx(), mount.Options{Driver: driver, KubeletDir: n.kubeletDir})
	if err != nil {
		t.Fatal(err)
	}
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
	v, err := n.Create(n.ctx(), params(id))
	n.must(err)
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
	if err != nil {
		n.Fatal(err)
	}
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
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	n.must(err)
	return infos
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
	fds, err := os.ReadDir("/proc/self/fd")
	n.must(err)
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
