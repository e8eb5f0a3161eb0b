package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// alerting is a Prometheus, and the expressions of the alerts.
type alerting struct {
	*harness.Prometheus
	t      *testing.T
	deploy string
	exprs  map[string]string
}

func newAlerting(t *testing.T) *alerting {
	t.Helper()
	repo, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	a := &alerting{t: t, deploy: filepath.Join(repo, "deploy"), exprs: map[string]string{}}
	if a.Prometheus, err = harness.BuildPrometheus(t.Context(), t.TempDir(), os.Stderr); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(a.deploy, "alerts", "refvol.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			a.exprs[rule.Alert] = rule.Expr
		}
	}
	return a
}

// TestAlertUnits runs the alerts' unit tests with promtool.
func TestAlertUnits(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	for _, args := range [][]string{{"check", "rules", "refvol.rules.yaml"}, {"test", "rules", "refvol.test.yaml"}} {
		args[2] = filepath.Join(a.deploy, "alerts", args[2])
		if out, err := a.Promtool(t.Context(), args...); err != nil {
			t.Error(err)
		} else if !strings.Contains(out, "SUCCESS") {
			t.Errorf("promtool %q says %q", args, out)
		}
	}
	units, err := os.ReadFile(filepath.Join(a.deploy, "alerts", "refvol.test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for alert := range a.exprs {
		if !strings.Contains(string(units), "alertname: "+alert+"\n    exp_alerts:") {
			t.Errorf("%s has no unit test in which it fires", alert)
		}
	}
}

// scrapeInterval is how far scrapes lie apart for Prometheus, in seconds. They are taken as fast as the
// plugin answers.
const scrapeInterval = 30

// scrapes takes one scrape, calls do, if there is one, and takes another.
func (n *node) scrapes(do func()) []harness.Scrape {
	n.t.Helper()
	target := map[string]string{"job": "refvol-plugin", "node": "node-1"}
	scrapes := []harness.Scrape{{Labels: target, Text: n.scrapeText()}}
	if do != nil {
		do()
		scrapes = append(scrapes, harness.Scrape{Seconds: scrapeInterval, Labels: target, Text: n.scrapeText()})
	}
	return scrapes
}

// asReady leaves out that no kubelet registers the driver: TestAlertsFire has that as a fault of its own.
func asReady(scrapes []harness.Scrape) []harness.Scrape {
	for i := range scrapes {
		scrapes[i].Text = regexp.MustCompile(`(refvol_ready\{.*\}) 0`).ReplaceAllString(scrapes[i].Text, "$1 1")
	}
	return scrapes
}

// wantFiring wants that the expressions of these alerts, and of no other, have a result.
func (a *alerting) wantFiring(t *testing.T, scrapes []harness.Scrape, want ...string) {
	t.Helper()
	var names, exprs []string
	for name, expr := range a.exprs {
		names, exprs = append(names, name), append(exprs, expr)
	}
	found, err := a.Query(t.Context(), scrapes, scrapes[len(scrapes)-1].Seconds, exprs...)
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, name := range want {
		wanted[name] = true
	}
	firing := map[string]bool{}
	for i, name := range names {
		if len(found[i]) > 0 {
			firing[name] = true
		}
	}
	if !maps.Equal(firing, wanted) {
		t.Errorf("alerts %v, want %v, by\n%s", firing, wanted, scrapes[len(scrapes)-1].Text)
	}
}

// TestAlertsFire makes the fault that an alert is for, and evaluates all expressions on what the plugin
// serves then. How long a fault must last is for the unit tests. A sample makes some of them.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	faults := map[string]func(*testing.T, *alerting){
		"none": func(t *testing.T, a *alerting) {
			n := newNode(t, anyPort)
			n.value("app")
			v := n.short("app")
			n.mustPublish(v)
			a.wantFiring(t, asReady(n.scrapes(func() { n.arrives(v, "key", n.value("app"), soon) })))
		},
		"not registered": func(t *testing.T, a *alerting) {
			a.wantFiring(t, newNode(t, anyPort).scrapes(nil), "RefvolPluginNotReady")
		},
		"not scraped": func(t *testing.T, a *alerting) {
			scrapes := asReady(newNode(t, anyPort).scrapes(nil))
			scrapes[0].Labels["job"] = "other"
			a.wantFiring(t, scrapes, "RefvolPluginAbsent")
		},
		"deleted object": func(t *testing.T, a *alerting) {
			n := newNode(t, anyPort)
			n.value("app")
			n.mustPublish(n.short("app"))
			n.deleteConfigMap("app")
			n.counts(map[series]float64{`refvol_volumes{condition="RefDeleted"}`: 1})
			a.wantFiring(t, asReady(n.scrapes(nil)), "RefvolVolumesAbnormal")
		},
		"full volume": func(t *testing.T, a *alerting) {
			n := newNode(t, anyPort, "--max-volume-size=64Ki")
			n.value("app")
			n.mustPublish(n.short("app"))
			a.wantFiring(t, asReady(n.scrapes(func() {
				before := n.scrape()
				n.configMap("app", map[string]string{"key": n.canary() + strings.Repeat("x", 100<<10)})
				n.moves(before, map[series]float64{`refvol_writes_total{result="error"}`: 1, `refvol_volumes{condition="VolumeUpdateFailed"}`: 1})
			})), "RefvolVolumesAbnormal", "RefvolWritesFail")
		},
		"full node": func(t *testing.T, a *alerting) {
			n := newNode(t, anyPort, "--max-volume-size=64Ki", "--max-total-size=70Ki")
			n.configMap("app", map[string]string{"key": n.canary() + strings.Repeat("x", 56<<10)})
			n.mustPublish(n.short("app"))
			full := n.short("app")
			wantStatus(t, n.finalAnswer(full), codes.ResourceExhausted)
			a.wantFiring(t, asReady(n.scrapes(func() {
				wantStatus(t, n.finalAnswer(full), codes.ResourceExhausted)
			})), "RefvolMemoryNearLimit", "RefvolCallsFail", "RefvolWritesFail")
		},
		"refused publishes": func(t *testing.T, a *alerting) {
			n := newNodeAs(t, shared.powerless, anyPort)
			refused := n.short("app")
			wantStatus(t, n.finalAnswer(refused), codes.PermissionDenied)
			a.wantFiring(t, asReady(n.scrapes(func() {
				wantStatus(t, n.finalAnswer(refused), codes.PermissionDenied)
			})), "RefvolPublishesRefused")
		},
		"no tokens after a restart": func(t *testing.T, a *alerting) {
			n := newPodNode(t, anyPort)
			n.secret("db", map[string]string{"key": n.canary()})
			allow(t, n.namespace, readers("secret", "db"), account(n.namespace, "web"))
			v := n.own("secret", "db", "web")
			harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
			n.restartWith()
			n.counts(map[series]float64{"refvol_volumes_without_token": 1, `refvol_volumes{condition="Unknown"}`: 1})
			a.wantFiring(t, asReady(n.scrapes(nil)), "RefvolVolumesWithoutToken", "RefvolVolumesUnknown")
		},
		"reviews fail": func(t *testing.T, a *alerting) {
			n := newProxiedAs(t, componentAccount(t, "cross-namespace"), faultproxy.Options{}, "--cross-namespace", "--resync-interval=1s", anyPort)
			across := &acrossNode{node: n.node, source: newNamespace(t)}
			across.put("secret", "db", n.canary())
			allow(t, across.source, readers("secret", "db"), account(n.namespace, "web"))
			n.value("own")
			v := across.across("secret", "db")
			v.ServiceAccount = "web"
			harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) })
			n.inject(faultproxy.ServerError)
			n.moves(n.scrape(), map[series]float64{`refvol_authorizations_total{result="error"}`: 1})
			a.wantFiring(t, asReady(n.scrapes(func() {
				n.moves(n.scrape(), map[series]float64{`refvol_authorizations_total{result="error"}`: 1})
			})), "RefvolReviewsFail", "RefvolVolumesAbnormal")
		},
		"broken watches": func(t *testing.T, a *alerting) {
			n := newProxied(t, faultproxy.Options{}, anyPort)
			n.withFault(faultproxy.WatchClosed)
			a.wantFiring(t, asReady(n.scrapes(func() {
				n.moves(n.scrape(), map[series]float64{`refvol_reflector_restarts_total{kind="ConfigMap"}`: 5})
			})), "RefvolWatchesRestart")
		},
		"API server in trouble": func(t *testing.T, a *alerting) {
			n := newProxied(t, faultproxy.Options{}, anyPort)
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
		},
		// A test can't wait for ten minutes, so three seconds take their place.
		"API server away": func(t *testing.T, a *alerting) {
			n := newProxied(t, faultproxy.Options{}, anyPort)
			n.withFault(faultproxy.Refused)
			n.isStale(nil)
			const alert = "RefvolFilesStale"
			expr := strings.Replace(a.exprs[alert], "> 600", "> 3", 1)
			if expr == a.exprs[alert] {
				t.Fatalf("the expression %s is not the one that this test knows", expr)
			}
			found, err := a.Query(t.Context(), n.scrapes(nil), 0, expr)
			if err != nil || len(found[0]) != 1 || found[0][0].Labels["node"] != "node-1" {
				t.Errorf("the expression finds %v, %v", found, err)
			}
		},
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults[name](t, a)
		})
	}
}

// TestDashboardHasData evaluates each query of the dashboard on what a plugin serves.
func TestDashboardHasData(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	text, err := os.ReadFile(filepath.Join(a.deploy, "dashboards", "refvol.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	n := newAcrossNode(t, anyPort)
	n.put("secret", "db", n.canary())
	allow(t, n.source, readers("secret", "db"), account(n.namespace, "web"))
	n.value("own")
	v := n.across("secret", "db")
	v.ServiceAccount = "web"
	publish := func() { harness.Eventually(t, soon, func() error { return n.Publish(t.Context(), v) }) }
	publish()
	// Each rate needs a first value.
	wantStatus(t, n.finalAnswer(n.volume(map[string]string{"configMap": "own", "mode": "bad"})), codes.InvalidArgument)
	scrapes := n.scrapes(func() {
		before := n.scrape()
		n.arrives(v, "key", n.value("own"), soon)
		n.mustUnpublish(v)
		publish()
		n.moves(before, map[series]float64{"refvol_propagation_seconds": 1, "rest_client_request_duration_seconds": 1, "rest_client_requests_total": 1})
	})
	var titles, legends, queries []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			titles, legends = append(titles, panel.Title), append(legends, target.LegendFormat)
			queries = append(queries, strings.NewReplacer("$node", ".*", "$__rate_interval", fmt.Sprint(4*scrapeInterval, "s")).Replace(target.Expr))
		}
	}
	found, err := a.Query(t.Context(), scrapes, scrapeInterval, queries...)
	if err != nil {
		t.Fatal(err)
	}
	for i, samples := range found {
		numbers := 0
		for _, s := range samples {
			if !math.IsNaN(s.Value) {
				numbers++
			}
			for label := range strings.SplitSeq(legends[i], "{{") {
				if name, _, ok := strings.Cut(label, "}}"); ok && s.Labels[name] == "" {
					t.Errorf("panel %s: a series of %s has no label %s", titles[i], queries[i], name)
				}
			}
		}
		if numbers == 0 {
			t.Errorf("panel %s: %s finds %v", titles[i], queries[i], samples)
		}
	}
}
