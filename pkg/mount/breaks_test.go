package mount

import (
	"context"
	"errors"
	"os"
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
	if err := m.proveBySource(openPath(t, m.kubeletDir+"/ours"), "v"); err != nil {
		t.Errorf("the volume's own mount: %v", err)
	}
	if err := m.proveBySource(openPath(t, m.kubeletDir+"/foreign"), "v"); !errors.Is(err, ErrForeign) {
		t.Errorf("another mount: got %v, want %v", err, ErrForeign)
	}
}
