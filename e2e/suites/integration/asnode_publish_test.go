package integration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// proxiedAsNode is an asNode behind a proxy.
type proxiedAsNode struct {
	asNode
	behind *proxied
}

func newProxiedAsNode(t *testing.T, args ...string) *proxiedAsNode {
	t.Helper()
	_, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
	behind := newProxiedAs(t, kubeconfig, faultproxy.Options{}, slices.Concat([]string{"--identity=node"}, args)...)
	return &proxiedAsNode{asNode{behind.node, harness.NodeName}, behind}
}

// reads returns the requests for ConfigMaps, Secrets and pods since forgetRequests, and fails the
// test if one of them had other rights than the node's.
func (n *proxiedAsNode) reads() []faultproxy.Request {
	n.t.Helper()
	var reads []faultproxy.Request
	for _, r := range n.behind.requests() {
		if r.Resource != "configmaps" && r.Resource != "secrets" && r.Resource != "pods" {
			continue
		}
		if r.User != nodeUser(harness.NodeName) {
			n.t.Errorf("%s of %v as %q", r.Verb, r.Object, r.User)
		}
		reads = append(reads, r)
	}
	return reads
}

// TestAsNodeWithoutMirrorPod: the API server has no pod for a static pod until it accepts the mirror, which NodeRestriction
// refuses if it names Secrets. Until then its authorizer answers 403, as for a pod of another node, and no 404.
func TestAsNodeWithoutMirrorPod(t *testing.T) {
	t.Parallel()
	n := newAsNode(t, "--publish-wait=1s")
	n.secret("db", map[string]string{"password": n.canary()})
	static := n.volume(directly("secret", "db"))
	static.Unknown = true
	for range 2 {
		wantStatus(t, n.finalAnswer(static), codes.PermissionDenied, "read pod "+n.namespace+"/"+static.Pod+": ", "no relationship found between node")
	}
	n.wantNothingLeft()
}
