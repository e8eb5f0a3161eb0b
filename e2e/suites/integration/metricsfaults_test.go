package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestFaultsShow makes one fault of each kind. The metrics that tell of it move, and move back where it can be
// mended. Of the alerts' expressions, all of which are evaluated on what the plugin serves, those of that fault
// have a result. Faults of which no other alert tells are left to the alerts' unit tests, as is how long one must last.
func TestFaultsShow(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	for name, test := range map[string]func(*testing.T, *alerting){
		"not registered":        unregisteredShows,
		"deleted object":        deletedObjectShows,
		"forbidden":             forbiddenShows,
		"API server away":       absentServerShows,
		"API server in trouble": failingServerShows,
		"full node":             fullNodeShows,
		"reviews fail":          failingReviewsShow,
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

func forbiddenShows(t *testing.T, a *alerting) {
	n := newNodeAs(t, shared.powerless, anyPort, "--publish-wait=1s")
	n.value("app")
	before := n.scrape()
	refused := n.short("app")
	wantStatus(t, n.finalAnswer(refused), codes.PermissionDenied)
	n.moves(before, map[series]float64{
		`refvol_csi_call_duration_seconds{method="NodePublishVolume",code="PermissionDenied"}`: 1,
		`rest_client_requests_total{code="403"}`:                                               1,
	})

	a.wantFiring(t, asReady(n.scrapes(func() {
		wantStatus(t, n.finalAnswer(refused), codes.PermissionDenied)
	})), "RefvolPublishesRefused")
	forbid := allow(t, n.namespace, readers("configmap"), account(pluginNamespace, powerlessAccount))
	v := n.short("app")
	n.publishes(v, soon)
	n.counts(map[series]float64{`refvol_objects{kind="ConfigMap",state="present"}`: 1})
	forbid()
	// An open watch goes on, so the refusal comes with the next one.
	n.restartWith()
	n.mustPublish(v) // as the kubelet does
	n.counts(map[series]float64{
		`refvol_objects{kind="ConfigMap",state="denied"}`: 1, `refvol_volumes{condition="RefForbidden"}`: 1, "refvol_volumes": 1,
	})
}

func absentServerShows(t *testing.T, a *alerting) {
	n := newProxied(t, anyPort)
	v := n.withFault(faultproxy.Refused)
	n.isStale(map[series]float64{`rest_client_requests_total{code="<error>"}`: 1})
	// A test can't wait for ten minutes, so three seconds take their place.
	expr := strings.Replace(a.exprs["RefvolFilesStale"], "> 600", "> 3", 1)
	if found, err := a.Query(t.Context(), n.scrapes(nil), 0, expr); err != nil || len(found[0]) != 1 || found[0][0].Labels["node"] != "node-1" {
		t.Errorf("the expression %s finds %v, %v", expr, found, err)
	}
	n.recovers(v)
}

func failingServerShows(t *testing.T, a *alerting) {
	n := newProxied(t, anyPort)
	// Later there are no other requests than those that fail: a series that begins in the second
	// scrape doesn't grow.
	n.counts(map[series]float64{`refvol_ready{condition="rights"}`: 1})
	for i := range 5 {
		name := fmt.Sprint("failing-", i)
		n.value(name)
		n.publishes(n.short(name), soon)
	}
	n.withFault(faultproxy.ServerError)
	n.proxy.ResetConnections()
	n.moves(n.scrape(), map[series]float64{`rest_client_requests_total{code="500"}`: 1})
	a.wantFiring(t, asReady(n.scrapes(func() {
		n.moves(n.scrape(), map[series]float64{`rest_client_requests_total{code="500"}`: 12})
	})), "RefvolAPIRequestsFail")
}

// withFault publishes a volume and then makes a fault.
func (n *proxied) withFault(fault faultproxy.Fault) *harness.Volume {
	n.t.Helper()
	n.value("app")
	v := n.short("app")
	n.publishes(v, soon)
	n.inject(fault)
	return v
}

// isStale waits until the objects can't be watched, and the time since they were last proven current grows, though the
// volume keeps its condition, and other series move.
func (n *proxied) isStale(by map[series]float64) {
	n.t.Helper()
	before := n.scrape()
	moves := map[series]float64{"refvol_object_staleness_max_seconds": 3}
	for of, least := range by {
		moves[of] = least
	}
	n.moves(before, moves)
	n.counts(map[series]float64{`refvol_volumes{condition="Current"}`: 1, "refvol_stale_objects": 1})
}

// recovers ends the fault. A change then arrives, which proves the object current.
func (n *proxied) recovers(v *harness.Volume) {
	n.t.Helper()
	n.heal()
	before, began := n.scrape(), time.Now()
	n.arrives(v, "key", n.value("app"), healed)
	n.moves(before, map[series]float64{"refvol_propagation_seconds": 1})
	if age, most := n.scrape().sum("refvol_object_staleness_max_seconds"), time.Since(began).Seconds(); age > most {
		n.t.Errorf("last proven current %.1f s ago, and the change is not older than %.1f s", age, most)
	}
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

func failingReviewsShow(t *testing.T, a *alerting) {
	n := newProxiedAs(t, componentAccount(t, "cross-namespace"), "--cross-namespace", "--resync-interval=1s", anyPort)
	n.source = newNamespace(t)
	n.consented()
	n.inject(faultproxy.ServerError)
	n.moves(n.scrape(), map[series]float64{`refvol_authorizations_total{result="error"}`: 1})
	a.wantFiring(t, asReady(n.scrapes(func() {
		n.moves(n.scrape(), map[series]float64{`refvol_authorizations_total{result="error"}`: 1})
	})), "RefvolReviewsFail", "RefvolVolumesAbnormal")
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
