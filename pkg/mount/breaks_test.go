package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// detached returns a volume that nobody sees, and a Mounter of a kubelet's directory.
func detached(t *testing.T) (*Volume, *Mounter) {
	t.Helper()
	tree, _ := tree(t)
	m, err := New(t.Context(), Options{Driver: "d", KubeletDir: tree.kubeletDir})
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.Create(t.Context(), Params{VolumeID: "v", Size: 4096, Inodes: 8, Mode: 0o755, UID: volume.NoOwner, GID: volume.NoOwner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v, m
}

// TestAttachCoversNothing: what lies at a target stays visible.
func TestAttachCoversNothing(t *testing.T) {
	v, m := detached(t)
	target := m.kubeletDir + "/pods/1/v"
	writeFile(t, target+"/file")
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // there is none, unless the test fails
	if err := v.Attach(t.Context(), target); !errors.Is(err, ErrForeign) {
		t.Errorf("got %v, want %v", err, ErrForeign)
	}
	if _, err := os.Stat(target + "/file"); err != nil {
		t.Errorf("the file is covered: %v", err)
	}
}

// TestACancelledAttachShowsNothing: a publish that has ended leaves no mount.
func TestACancelledAttachShowsNothing(t *testing.T) {
	v, m := detached(t)
	target := m.kubeletDir + "/pods/1/v/mount"
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // there is none, unless the test fails
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := v.Attach(ctx, target); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target is there: %v", err)
	}
}

// TestStillAtComparesDeviceAndInode: neither alone tells that a file system is the volume's. Directories stand
// for the roots of file systems.
func TestStillAtComparesDeviceAndInode(t *testing.T) {
	stat := func(path string) (st unix.Stat_t) {
		t.Helper()
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	still := func(own, target string) bool {
		v := &Volume{mounter: &Mounter{kubeletDir: "/"}, mount: openPath(t, own)}
		return v.StillAt(t.Context(), target)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	mkdirAll(t, dir+"/a", dir+"/b")
	if !still(dir+"/a", dir+"/a") {
		t.Error("the same directory is taken for another one")
	}
	if stat(dir+"/a").Dev != stat(dir+"/b").Dev {
		t.Fatal("the directories are of different devices")
	}
	if still(dir+"/a", dir+"/b") {
		t.Error("another directory of the device is taken for the volume's")
	}
	// Many file systems number their root as 1.
	roots := slices.DeleteFunc([]string{"/proc", "/sys", "/dev/shm", "/dev/pts"}, func(path string) bool {
		var st unix.Stat_t
		return unix.Stat(path, &st) != nil || st.Ino != 1 || st.Dev == stat("/proc").Dev && path != "/proc"
	})
	if len(roots) < 2 {
		t.Fatalf("no two file systems whose root has the number 1: %q", roots)
	}
	if still(roots[0], roots[1]) {
		t.Errorf("%s is taken for %s", roots[1], roots[0])
	}
}

// TestTheTableIsAskedForTheMount: a mount of the volume's source elsewhere proves nothing about this one.
func TestTheTableIsAskedForTheMount(t *testing.T) {
	_, m := detached(t)
	for name, source := range map[string]string{"ours": m.source("v"), "foreign": "tmpfs"} {
		target := m.kubeletDir + "/" + name
		mkdirAll(t, target)
		if err := unix.Mount(source, target, "tmpfs", 0, "size=4k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	}
	if err := m.proveByTable(openPath(t, m.kubeletDir+"/ours"), "v"); err != nil {
		t.Errorf("the volume's own mount: %v", err)
	}
	if err := m.proveByTable(openPath(t, m.kubeletDir+"/foreign"), "v"); !errors.Is(err, ErrForeign) {
		t.Errorf("another mount: got %v, want %v", err, ErrForeign)
	}
}

// TestACloneIsOfTheProvenMount: if the path that stands for a descriptor leads elsewhere, nothing is written there.
func TestACloneIsOfTheProvenMount(t *testing.T) {
	v, m := detached(t)
	target := m.kubeletDir + "/pods/1/v/mount"
	if err := v.Attach(t.Context(), target); err != nil { // many kernels clone no detached mount
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	if err := unix.Mount("none", "/proc", "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	var dirs error
	for fd := range 256 {
		dirs = errors.Join(dirs, os.MkdirAll(fmt.Sprintf("/proc/self/fd/%d", fd), 0o755))
	}
	clone, err := m.clone("v", v.mount)
	if unmountErr := unix.Unmount("/proc", unix.MNT_DETACH); unmountErr != nil || dirs != nil {
		t.Fatal(errors.Join(unmountErr, dirs))
	}
	if !errors.Is(err, ErrForeign) || !strings.Contains(fmt.Sprint(err), "clone") {
		t.Errorf("got %v, want %v", err, ErrForeign)
	}
	if clone != nil {
		clone.Close()
	}
}
