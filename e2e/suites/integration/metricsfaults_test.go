package integration

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
)

// TestFaultsShow makes one fault of each kind. The metrics that tell of it move, and move back where it can be
// mended. Of the alerts' expressions, all of which are evaluated on what the plugin serves, those of that fault
// have a result. All other faults are left to the alerts' unit tests, as is how long one must last.
func TestFaultsShow(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	for name, test := range map[string]func(*testing.T, *alerting){
		"not registered":        unregisteredShows,
		"deleted object":        deletedObjectShows,
		"API server in trouble": failingServerShows,
		"full node":             fullNodeShows,
		"no tokens":             missingTokensShow,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, a)
		})
	}
}

func unregisteredShows(t *testing.T, a *alerting) {
	scrapes := newNode(t, anyPort).scrapes(nil)
	a.wantFiring(t, scrapes, "RefvolPluginNotReady")
	scrapes[0].Labels["job"] = "other"
	a.wantFiring(t, asReady(scrapes), "RefvolPluginAbsent")
}

func deletedObjectShows(t *testing.T, a *alerting) {
	n := newNode(t, anyPort)
	n.value("app")
	v := n.published("app")
	n.removeObject("configMap", "app")
	n.counts(map[series]float64{`refvol_volumes{condition="RefDeleted"}`: 1, `refvol_objects{kind="ConfigMap",state="absent"}`: 1})
	a.wantFiring(t, asReady(n.scrapes(nil)), "RefvolVolumesAbnormal")
	value := n.value("app")
	n.arrives(v, "key", value, soon)
	n.counts(map[series]float64{`refvol_volumes{condition="Current"}`: 1, `refvol_objects{kind="ConfigMap",state="present"}`: 1})
}

func failingServerShows(t *testing.T, a *alerting) {
	n := newProxied(t, anyPort)
	// Later there are no other requests than those that fail: a series that begins in the second
	// scrape doesn't grow.
	n.counts(map[series]float64{`refvol_ready{condition="rights"}`: 1})
	for i := range 6 {
		name := fmt.Sprint("failing-", i)
		n.value(name)
		n.publishes(n.short(name), soon)
	}
	n.inject(faultproxy.ServerError)
	n.proxy.ResetConnections()
	n.moves(n.scrape(), map[series]float64{`rest_client_requests_total{code="500"}`: 1})
	a.wantFiring(t, asReady(n.scrapes(func() {
		n.moves(n.scrape(), map[series]float64{`rest_client_requests_total{code="500"}`: 12})
	})), "RefvolAPIRequestsFail")
}

func fullNodeShows(t *testing.T, a *alerting) {
	n := newNode(t, anyPort, "--max-volume-size=128Ki", "--max-total-size=128Ki")
	n.configMap("app", map[string]string{"key": n.canary() + strings.Repeat("x", 110<<10)})
	v, full := n.short("app"), n.short("app")
	n.mustPublish(v)
	holds := float64(n.kernelCounts(v))
	n.counts(map[series]float64{"refvol_volume_bytes": holds})
	wantStatus(t, n.finalAnswer(full), codes.ResourceExhausted)
	n.counts(map[series]float64{
		`refvol_csi_call_duration_seconds{method="NodePublishVolume",code="ResourceExhausted"}`: 1,
		`refvol_writes_total{result="error"}`:                                                   1, "refvol_volume_bytes": holds, "refvol_volumes": 1,
	})
	a.wantFiring(t, asReady(n.scrapes(func() {
		wantStatus(t, n.finalAnswer(full), codes.ResourceExhausted)
	})), "RefvolMemoryNearLimit", "RefvolCallsFail", "RefvolWritesFail")
}

func missingTokensShow(t *testing.T, a *alerting) {
	n := newPodNode(t, anyPort)
	n.secret("db", map[string]string{"key": n.canary()})
	allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
	v := n.own("secret", "db", "web")
	n.publishes(v, soon)
	n.counts(map[series]float64{"refvol_volumes_without_token": 0, `refvol_volumes{condition="Current"}`: 1})
	n.restartWith()
	n.counts(map[series]float64{"refvol_volumes_without_token": 1, `refvol_volumes{condition="Unknown"}`: 1})
	a.wantFiring(t, asReady(n.scrapes(nil)), "RefvolVolumesWithoutToken", "RefvolVolumesUnknown")
	n.mustPublish(v) // as the kubelet does after a while
	n.counts(map[series]float64{"refvol_volumes_without_token": 0, `refvol_volumes{condition="Current"}`: 1})
}
