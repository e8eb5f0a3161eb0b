package integration

import (
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
	n.mustPublish(v) // of what is mounted nothing can newly fail
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
