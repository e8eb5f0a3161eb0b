package integration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
)

// TestMountsThatReachNoPod: a plugin whose mounts don't reach pods says what to set, publishes nothing, and
// leaves the startup taint. It registers, so that pods can end, and updates the volumes of the process before.
func TestMountsThatReachNoPod(t *testing.T) {
	t.Parallel()
	node := newNodeObject(t, "0")
	n := newNodeAs(t, componentAccount(t, "startup-taint"), "--node-name="+node, "--startup-taint="+startupTaint, anyPort)
	n.value("app")
	v := n.short("app")
	n.mustPublish(v)
	// The pod that the plugin is in is made again, without the propagation.
	n.mustKill()
	if err := n.Propagate(false); err != nil {
		t.Fatal(err)
	}
	setTaints(t, node, []corev1.Taint{{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}})
	before := taints(t, node)
	n.mustStart()
	n.confirm(n.kubelet(), true)

	const advice = "mounts of this process don't reach the node: set mountPropagation: Bidirectional"
	n.becomes("[-]shared-mounts: ", advice, "[+]rights ok", "[+]registration ok")
	n.logs("Not ready: pods would get empty directories", 1)
	n.arrives(v, "key", n.value("app"), soon) // its pod's spec says what it shows
	n.mustPublish(v)
	late := n.short("app")
	wantStatus(t, n.Publish(t.Context(), late), codes.Unavailable, advice)
	n.wantMounts(1)
	n.mustUnpublish(late)
	n.mustUnpublish(v)
	n.wantNothingLeft()
	n.logs("startup taint", 0)
	if got := taints(t, node); !slices.Equal(got, before) {
		t.Errorf("the taints are %q, want %q", got, before)
	}

	n.mustKill()
	if err := n.Propagate(true); err != nil {
		t.Fatal(err)
	}
	n.mustStart()
	n.confirm(n.kubelet(), true)
	taintsBecome(t, node, nil)
	n.becomes()
	n.mustPublish(late)
	n.mustUnpublish(late)
}
