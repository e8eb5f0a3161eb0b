package integration

import (
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
			before := n.value("app")
			n.configMap("late", map[string]string{"key": "late"})
			stays, goes, comes := n.published("app"), n.published("app"), n.short("late")
			_, watches := n.proxy.Watches("app")
			n.inject(fault)
			if fault == faultproxy.Unauthorized {
				n.proxy.ResetConnections() // so that the watches have to be opened again
			}
			changed := n.value("app")
			for range 2 { // longer than a connection is silent before it is pinged
				// Refusals that have lasted for 5 s count as an answer. The kubelet repeats on that code, too.
				if err := n.Publish(t.Context(), comes); fault != faultproxy.Unauthorized || status.Code(err) != codes.PermissionDenied {
					wantStatus(t, err, codes.Unavailable)
				}
			}
			n.mustUnpublish(goes)
			n.wantContent(stays, "key", before) // else there is no fault
			n.heal()
			took := n.arrives(stays, "key", changed, noticed+healed)
			n.publishes(comes, healed)
			n.wantContent(comes, "key", "late")
			t.Logf("current %s after the fault", took)
			if _, now := n.proxy.Watches("app"); fault == faultproxy.Partition && now != watches {
				t.Error("a short stall dropped a watch")
			}
			n.mustUnpublish(stays)
			n.mustUnpublish(comes)
			n.wantNothingLeft()
			harness.Eventually(t, soon, func() error { return noWatches(n.proxy) })
		})
	}
}
