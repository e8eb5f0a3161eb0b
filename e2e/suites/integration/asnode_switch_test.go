package integration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestAsNodeAfterAnotherIdentity switches a plugin to its node's identity under a running pod
// whose spec does not name what its volume shows. Publishes, as after a restart of the kubelet,
// leave the volume as it is; after a reboot there is none to leave.
func TestAsNodeAfterAnotherIdentity(t *testing.T) {
	t.Parallel()
	rules, err := harness.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, kubeconfig := pluginPod(t, harness.NodeName, slices.Concat(rules, asNodeRules(t)))
	n := &asNode{newNodeAs(t, kubeconfig, "--identity=plugin"), harness.NodeName}
	first, second := n.canary(), n.canary()
	n.secret("db", map[string]string{"key": first})
	unnamed := n.shown(nativeSecret("other"), directly("secret", "db"))
	named := n.shown(nativeSecret("db"), directly("secret", "db"))
	for _, v := range []*harness.Volume{unnamed, named} {
		n.publishes(v, soon)
	}

	n.restartWith("--identity=node")
	n.secret("db", map[string]string{"key": second})
	n.arrives(named, "key", second, soon)
	for range 2 {
		n.mustPublish(unnamed)
		n.mustPublish(named)
	}
	n.hasEvent(unnamed, "VolumeUpdateFailed", "the pod's spec does not name")
	n.wantContent(unnamed, "key", first)

	n.reboot()
	wantStatus(t, n.Publish(t.Context(), unnamed), codes.InvalidArgument, "the pod's spec does not name")
	n.mustPublish(named)
	n.mustUnpublish(unnamed)
	n.mustUnpublish(named)
	n.wantNothingLeft()
}
