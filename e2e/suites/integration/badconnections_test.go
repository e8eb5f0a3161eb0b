package integration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestBadConnections: connections are refused, cut or deaf; the other faults of an API server are in internal/simulation and pkg/requests.
// Meanwhile files stay as they are, a publish fails in a way that the kubelet repeats, and an unpublish works. Soon after, everything is
// current. A short stall drops no watch.
func TestBadConnections(t *testing.T) {
	t.Parallel()
	faults := []faultproxy.Fault{faultproxy.Refused, faultproxy.Cut, faultproxy.Unauthorized}
	for _, fault := range harness.Scaled(faults, append(faults, faultproxy.HalfOpen, faultproxy.Partition)) {
		t.Run(fault.String(), func(t *testing.T) {
			t.Parallel()
			n := newProxied(t, "--publish-wait=3s")
			changes := n.newThing("configMap", "app")
			n.configMap("late", map[string]string{"key": "late"})
			seen, goes, comes := n.watch(changes), n.published("app"), n.short("late")
			changes.write()
			converges(t, soon, seen)

			n.proxy.Requests()
			n.inject(fault)
			if fault == faultproxy.Unauthorized {
				n.proxy.ResetConnections() // so that the watches have to be opened again
			}
			changes.write()
			for range 2 { // longer than a connection is silent before it is pinged
				// Refusals that have lasted for 5 s count as an answer. The kubelet repeats on that code, too.
				if err := n.Publish(t.Context(), comes); fault != faultproxy.Unauthorized || status.Code(err) != codes.PermissionDenied {
					wantStatus(t, err, codes.Unavailable)
				}
			}
			n.mustUnpublish(goes)
			if seen.current() == nil {
				t.Error("the change arrived during the fault")
			}
			n.heal()
			took := converges(t, noticed+healed, seen)
			n.publishes(comes, healed)
			n.wantContent(comes, "key", "late")
			t.Logf("current %s after the fault", took)
			isDropped := func(r faultproxy.Request) bool { return r.Verb == "WATCH" && r.Name == changes.name }
			if fault == faultproxy.Partition && slices.ContainsFunc(n.proxy.Requests(), isDropped) {
				t.Error("a short stall dropped a watch")
			}
			seen.stop()
			n.mustUnpublish(seen.volume)
			n.mustUnpublish(comes)
			n.wantNothingLeft()
			harness.Eventually(t, soon, func() error { return noWatches(n.proxy) })
		})
	}
}
