package integration

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// alerting is a Prometheus, and the expressions of the alerts.
type alerting struct {
	*harness.Prometheus
	deploy string
	exprs  map[string]string
}

func newAlerting(t *testing.T) *alerting {
	t.Helper()
	repo, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	a := &alerting{deploy: filepath.Join(repo, "deploy"), exprs: map[string]string{}}
	if a.Prometheus, err = shared.prometheus(); err != nil {
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
	var names, exprs []string
	for name, expr := range a.exprs {
		names, exprs = append(names, name), append(exprs, expr)
	}
	found, err := a.Query(t.Context(), scrapes, scrapes[len(scrapes)-1].Seconds, exprs...)
	if err != nil {
		t.Fatal(err)
	}
	var firing []string
	for i, name := range names {
		if len(found[i]) > 0 {
			firing = append(firing, name)
		}
	}
	slices.Sort(firing)
	slices.Sort(want)
	if !slices.Equal(firing, want) {
		t.Errorf("alerts %v, want %v, by\n%s", firing, want, scrapes[len(scrapes)-1].Text)
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
	v, _ := n.consented()
	// Each rate needs a first value.
	wantStatus(t, n.finalAnswer(n.volume(map[string]string{"configMap": "own", "mode": "bad"})), codes.InvalidArgument)
	scrapes := n.scrapes(func() {
		before := n.scrape()
		n.arrives(v, "key", n.value("own"), soon)
		n.mustUnpublish(v)
		n.publishes(v, soon)
		n.moves(before, map[series]float64{"refvol_propagation_seconds": 1, "rest_client_request_duration_seconds": 1, "rest_client_requests_total": 1})
	})
	var titles, legends, queries []string
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			titles, legends = append(titles, panel.Title), append(legends, target.LegendFormat)
			queries = append(queries, strings.NewReplacer("$cluster", ".*", "$node", ".*", "$__rate_interval", fmt.Sprint(4*scrapeInterval, "s")).Replace(target.Expr))
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
				// A Prometheus with one cluster has no label cluster.
				if name, _, ok := strings.Cut(label, "}}"); ok && name != "cluster" && s.Labels[name] == "" {
					t.Errorf("panel %s: a series of %s has no label %s", titles[i], queries[i], name)
				}
			}
		}
		if numbers == 0 {
			t.Errorf("panel %s: %s finds %v", titles[i], queries[i], samples)
		}
	}
}
