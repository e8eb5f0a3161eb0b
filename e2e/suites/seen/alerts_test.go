package seen

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// alerting is a Prometheus, and the expressions of the alerts.
type alerting struct {
	*harness.Prometheus
	deploy string
	exprs  map[string]string
}

func newAlerting(t *testing.T) *alerting {
	t.Helper()
	repo := must.Get(harness.Repository())(t)
	a := &alerting{Prometheus: must.Get(lab.Prometheus())(t), deploy: filepath.Join(repo, "deploy"), exprs: map[string]string{}}
	text := must.Get(os.ReadFile(filepath.Join(a.deploy, "alerts", "refvol.rules.yaml")))(t)
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	must.Do(t, yaml.Unmarshal(text, &rules))
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
	units := must.Get(os.ReadFile(filepath.Join(a.deploy, "alerts", "refvol.test.yaml")))(t)
	for alert := range a.exprs {
		if !strings.Contains(string(units), "alertname: "+alert+"\n    exp_alerts:") {
			t.Errorf("%s has no unit test in which it fires", alert)
		}
	}
}

// scrapesOf takes one scrape, calls do, if there is one, and takes another as soon as the plugin answers.
func scrapesOf(n *world.Node, do func()) []harness.Scrape {
	n.T.Helper()
	target := map[string]string{"job": "refvol-plugin", "node": "node-1"}
	scrapes := []harness.Scrape{{Labels: target, Text: n.ScrapeText()}}
	if do != nil {
		do()
		scrapes = append(scrapes, harness.Scrape{Labels: target, Text: n.ScrapeText()})
	}
	return scrapes
}

// asReady leaves out that no kubelet registers the driver: TestFaultsShow has that as a fault of its own.
func asReady(scrapes []harness.Scrape) []harness.Scrape {
	for i := range scrapes {
		scrapes[i].Text = regexp.MustCompile(`(refvol_ready\{.*\}) 0`).ReplaceAllString(scrapes[i].Text, "$1 1")
	}
	return scrapes
}

// wantFiring wants that the expressions of these alerts, and of no other, have a result.
func (a *alerting) wantFiring(t *testing.T, scrapes []harness.Scrape, want ...string) {
	t.Helper()
	for _, name := range want {
		if a.exprs[name] == "" {
			t.Errorf("there is no alert %s", name)
		}
	}
	results := map[string]bool{}
	for name, expr := range a.exprs {
		results[expr] = slices.Contains(want, name)
	}
	if err := a.HasResults(t.Context(), t.TempDir(), scrapes, results); err != nil {
		t.Errorf("want the alerts %v alone: %v, by\n%s", want, err, scrapes[len(scrapes)-1].Text)
	}
}

// TestDashboardHasData evaluates each query of the dashboard on what a plugin serves.
func TestDashboardHasData(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	text := must.Get(os.ReadFile(filepath.Join(a.deploy, "dashboards", "refvol.json")))(t)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	must.Do(t, json.Unmarshal(text, &dashboard))
	n := lab.NewAcrossNode(t, world.AnyPort)
	v, _ := n.Consented("Atomic")
	// Each rate needs a first value.
	world.WantStatus(t, n.FinalAnswer(n.Volume(map[string]string{"secret": "db", "defaultMode": "bad"})), codes.InvalidArgument)
	scrapes := scrapesOf(n, func() {
		before := n.Scrape()
		value := n.Canary()
		n.PutTheirs(value)
		n.Arrives(v, "a", value, world.Soon)
		n.MustUnpublish(v)
		n.Publishes(v, world.Soon)
		moves(n, before, map[world.Series]float64{"refvol_propagation_seconds": 1, "rest_client_request_duration_seconds": 1, "rest_client_requests_total": 1})
	})
	results := map[string]bool{}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			query := "(" + strings.NewReplacer("$cluster", ".*", "$node", ".*", "$__rate_interval", "120s").Replace(target.Expr) + ")"
			// The comment names the panel in promtool's message. What is no number is no data.
			results[query+" == "+query+" # "+panel.Title] = true
			for label := range strings.SplitSeq(target.LegendFormat, "{{") {
				// A Prometheus with one cluster has no label cluster.
				if name, _, ok := strings.Cut(label, "}}"); ok && name != "cluster" {
					lacking := fmt.Sprintf(`label_replace(%s, "lacks", "yes", %q, "")`, query, name)
					results[lacking+` and on (lacks) label_replace(vector(1), "lacks", "yes", "", "") # `+panel.Title+", label "+name] = false
				}
			}
		}
	}
	if err := a.HasResults(t.Context(), t.TempDir(), scrapes, results); err != nil {
		t.Errorf("a query of the dashboard has no data, or a series lacks a label of the legend: %v", err)
	}
}

// TestFaultsShow: the metrics that tell of a fault move, and move back where it can be mended. Of the alerts' expressions, all of which are
// evaluated on what the plugin serves, those of that fault have a result. The other faults are left to the alerts' unit tests, as is how long
// one must last.
func TestFaultsShow(t *testing.T) {
	t.Parallel()
	a := newAlerting(t)
	t.Run("not registered", func(t *testing.T) {
		scrapes := scrapesOf(lab.NewNode(t, world.AnyPort), nil)
		a.wantFiring(t, scrapes, "RefvolPluginNotReady")
		scrapes[0].Labels["job"] = "other"
		a.wantFiring(t, asReady(scrapes), "RefvolPluginAbsent")
	})
	t.Run("deleted object", func(t *testing.T) {
		n := lab.NewNode(t, world.AnyPort)
		n.Value("app")
		v := n.Published("app")
		n.RemoveObject("configMap", "app")
		n.Counts(map[world.Series]float64{`refvol_volumes{condition="RefDeleted"}`: 1, `refvol_objects{kind="ConfigMap",state="absent"}`: 1})
		a.wantFiring(t, asReady(scrapesOf(n, nil)), "RefvolVolumesAbnormal")
		n.Arrives(v, "key", n.Value("app"), world.Soon)
		n.Counts(map[world.Series]float64{`refvol_volumes{condition="Current"}`: 1, `refvol_objects{kind="ConfigMap",state="present"}`: 1})
	})
	t.Run("full node", func(t *testing.T) {
		n := lab.NewNode(t, world.AnyPort, "--max-volume-size=128Ki", "--max-total-size=128Ki")
		n.ConfigMap("app", map[string]string{"key": n.Canary() + strings.Repeat("x", 110<<10)})
		v, full := n.Short("app"), n.Short("app")
		n.MustPublish(v)
		holds := float64(n.KernelCounts(v))
		world.WantStatus(t, n.FinalAnswer(full), codes.ResourceExhausted)
		n.Counts(map[world.Series]float64{
			`refvol_csi_call_duration_seconds{method="NodePublishVolume",code="ResourceExhausted"}`: 1,
			`refvol_writes_total{result="error"}`:                                                   1, "refvol_volume_bytes": holds, "refvol_volumes": 1,
		})
		a.wantFiring(t, asReady(scrapesOf(n, func() {
			world.WantStatus(t, n.FinalAnswer(full), codes.ResourceExhausted)
		})), "RefvolMemoryNearLimit", "RefvolCallsFail", "RefvolWritesFail")
	})
	t.Run("no tokens", func(t *testing.T) {
		n := lab.NewPodNode(t, world.AnyPort)
		n.Secret("db", map[string]string{"key": n.Canary()})
		lab.Allow(t, n.Namespace, world.Readers("secret", "db"), world.Account(n.Namespace, "web"))
		v := n.Own("web")
		n.Publishes(v, world.Soon)
		n.Counts(map[world.Series]float64{"refvol_volumes_without_token": 0, `refvol_volumes{condition="Current"}`: 1})
		n.RestartWith()
		n.Counts(map[world.Series]float64{"refvol_volumes_without_token": 1, `refvol_volumes{condition="Unknown"}`: 1})
		a.wantFiring(t, asReady(scrapesOf(n, nil)), "RefvolVolumesWithoutToken", "RefvolVolumesUnknown")
		n.MustPublish(v) // as the kubelet does after a while
		n.Counts(map[world.Series]float64{"refvol_volumes_without_token": 0, `refvol_volumes{condition="Current"}`: 1})
	})
}
