package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// limitDescriptors sets the soft limit of what the plugin may have open, and returns
// what takes that back; the descriptors that it has stay.
func (n *node) limitDescriptors(to uint64) (lift func()) {
	n.t.Helper()
	var old unix.Rlimit
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, nil, &old); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: to, Max: old.Max}, nil); err != nil {
		n.t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(n.PID(), unix.RLIMIT_NOFILE, &old, nil); err != nil {
			n.t.Fatal(err)
		}
	}
}

// Without a free descriptor nothing can be written, published or unpublished, and each
// says so; what shows stays.
func TestOutOfDescriptors(t *testing.T) {
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	v, goes, comes := n.short("app"), n.short("app"), n.short("app")
	n.mustPublish(v)
	n.mustPublish(goes)
	// What the plugin has open stays, and nothing can be opened.
	lift := n.limitDescriptors(1)
	next := n.canary()
	n.configMap("app", map[string]string{"key": next})
	const text = "too many open files"
	n.wantEventOnly(v, text)
	wantStatus(t, n.Publish(t.Context(), comes), codes.Unavailable, text)
	// The kubelet unmounts a running pod's volume after a final answer.
	wantStatus(t, n.Publish(t.Context(), v), codes.Unavailable, text)
	wantStatus(t, n.Unpublish(t.Context(), goes), codes.Internal, text)
	n.wantContent(v, "key", value)
	n.wantContent(goes, "key", value)
	n.wantMounts(2)

	lift()
	n.arrives(v, "key", next, afterCause)
	n.hasCondition(v, "")
	n.mustPublish(comes)
	n.wantContent(comes, "key", next)
	for _, v := range []*harness.Volume{v, goes, comes} {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// wantEventOnly is wantProblem for a plugin that can't measure the volume either, so
// that NodeGetVolumeStats fails with the same text.
func (n *node) wantEventOnly(v *harness.Volume, text string) {
	n.t.Helper()
	n.hasEvent(v, "VolumeUpdateFailed", text)
	_, err := n.Node().NodeGetVolumeStats(n.t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID(), VolumePath: n.Target(v)})
	wantStatus(n.t, err, codes.Internal, text)
}

// smallState puts the plugin's state directory on a file system of 64 KiB of its own,
// and restarts the plugin.
func (n *node) smallState() {
	n.t.Helper()
	n.mustKill()
	if err := unix.Mount("state", n.StateDir(), "tmpfs", 0, "size=64k"); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { // before finish, which searches the disk
		n.mustKill()
		if err := unix.Unmount(n.StateDir(), unix.MNT_DETACH); err != nil {
			n.t.Error(err)
		}
	})
	n.mustStart()
}

// Where no record can be written, no volume begins and each failed record is told. The
// files of live volumes go on being current: a record is needed after a restart only.
func TestStateDirectoryTakesNothing(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		// overwrites says that a record which is there can take the place of an earlier one.
		overwrites bool
		// end is the code of an unpublish, whose record can be removed from a full disk.
		end   codes.Code
		spoil func(t *testing.T, dir string) (mend func() error)
	}{
		{"full", "no space left on device", true, codes.OK, fillDisk},
		{"read-only", "read-only file system", false, codes.Internal, func(t *testing.T, dir string) func() error {
			t.Helper()
			if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			return func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") }
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			n.smallState()
			n.configMap("app", map[string]string{"key": n.canary()})
			n.configMap("other", map[string]string{"key": n.canary()})
			v, goes, comes := n.short("app"), n.short("other"), n.short("app")
			n.mustPublish(v)
			n.mustPublish(goes)
			record := n.recordText(v)
			mend := tc.spoil(t, n.StateDir())
			value := n.canary()
			n.configMap("app", map[string]string{"key": value})
			n.arrives(v, "key", value, soon)
			if !tc.overwrites {
				n.wantProblem(v, tc.text)
			}
			wantStatus(t, n.Publish(t.Context(), comes), codes.Internal, "write the record of volume", tc.text)
			if err := n.Unpublish(t.Context(), goes); tc.end != codes.OK || err != nil {
				wantStatus(t, err, tc.end, "remove the record of volume", tc.text)
			}
			n.mustPublish(v) // as the kubelet does after its own restart
			n.wantMounts(1)
			if now := n.recordText(v); (now != record) != tc.overwrites || n.problem(v) != "" && tc.overwrites {
				t.Errorf("the record is now %q, and was %q; the condition is %q", now, record, n.problem(v))
			}
			if err := mend(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, afterCause, func() error {
				if problem := n.problem(v); problem != "" || n.recordText(v) == record {
					return fmt.Errorf("the record is the old one, and the condition %q", problem)
				}
				return nil
			})
			n.mustPublish(comes)
			for _, v := range []*harness.Volume{v, goes, comes} {
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// recordText returns the whole record of a volume.
func (n *node) recordText(v *harness.Volume) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.StateDir(), n.recordOf(v)))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// fillDisk writes to a file of the directory's file system until there is no room.
func fillDisk(t *testing.T, dir string) (mend func() error) {
	t.Helper()
	path := filepath.Join(filepath.Clean(dir), "somebody-elses")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill %s: %v", dir, err)
	}
	return func() error { return os.Remove(path) }
}
