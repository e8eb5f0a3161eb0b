package integration

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestAsNodeWhileAllIsRefused has an API server whose authorizer refuses everything after its
// start, under many volumes: of a running plugin, whose watches have ended, and of one that starts
// as well. No file goes, few requests are sent, and all volumes are current afterwards.
func TestAsNodeWhileAllIsRefused(t *testing.T) {
	t.Parallel()
	_, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
	n := newProxiedAs(t, kubeconfig, faultproxy.Options{}, "--identity=node")
	count, lasts := harness.Scaled(40, 300), time.Duration(harness.Scaled(8, 75))*time.Second
	values := make([]string, count)
	volumes := make([]*harness.Volume, count)
	write := func() {
		t.Helper()
		for i := range values {
			values[i] = n.canary()
			n.secret(fmt.Sprint("s-", i), map[string]string{"key": values[i]})
		}
	}
	write()
	for i := range volumes {
		volumes[i] = n.shown(nativeSecret(fmt.Sprint("s-", i)), volumeSource())
		n.publishes(volumes[i], soon)
	}
	for _, restarted := range []bool{false, true} {
		old := append([]string{}, values...)
		if restarted {
			n.mustKill()
		}
		n.proxy.InjectFor(faultproxy.Forbidden, func(r faultproxy.Request) bool { return r.User != "" })
		n.proxy.ResetConnections()
		n.forgetRequests()
		counted := time.Now()
		if restarted {
			n.mustStart()
		}
		write()
		during(t, lasts, func() {
			i := rand.IntN(count)
			n.wantContent(volumes[i], "key", old[i])
		})
		for i, v := range volumes {
			n.wantContent(v, "key", old[i])
		}
		sent := 0
		for _, r := range n.requests() {
			if !slices.Contains([]string{"configmaps", "secrets", "pods"}, r.Resource) {
				continue
			}
			if sent++; r.User != nodeUser(harness.NodeName) {
				t.Errorf("%s of %v as %q", r.Verb, r.Object, r.User)
			}
		}
		// Each object in growing pauses of its own, the pods a few seconds apart, and the plugin's own.
		since := time.Since(counted)
		if most := 6*count + 10 + int((4+float64(count)/10)*since.Seconds()); sent == 0 || sent > most {
			t.Errorf("restarted %t: %d requests in %s, want 1 to %d", restarted, sent, since, most)
		}
		if lasts > time.Minute {
			text := "no relationship found"
			if restarted {
				text = "it has not been updated since the plugin restarted"
			}
			n.hasEvent(volumes[0], "RefForbidden", text)
		}
		n.heal()
		healedAt := time.Now()
		// An object is requested again after 30 s at most. A restarted plugin first reads the pod, after 60 s at most, and then the
		// object.
		most := 30 * time.Second
		if restarted {
			most = 65 * time.Second
		}
		for i, v := range volumes {
			n.arrives(v, "key", values[i], most)
		}
		took := time.Since(healedAt)
		t.Logf("restarted %t: %d requests in %s of refusals; all %d volumes current %s later", restarted, sent, lasts, count, took)
		if took > most {
			t.Errorf("restarted %t: current after %s, want %s at most", restarted, took, most)
		}
	}
	n.unpublishAll(volumes)
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
