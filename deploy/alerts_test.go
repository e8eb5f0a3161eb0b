package deploy

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write alerts/refvol.rules.yaml anew")

// alerts returns the rules of the component metrics.
func alerts(t *testing.T) []monitoringv1.RuleGroup {
	t.Helper()
	return only[*monitoringv1.PrometheusRule](t, renderWith(t, []string{"metrics"})).Spec.Groups
}

// TestPlainRules: the rules for a Prometheus without the operator are those of the component.
func TestPlainRules(t *testing.T) {
	const path = "alerts/refvol.rules.yaml"
	groups, err := yaml.Marshal(map[string]any{"groups": alerts(t)})
	if err != nil {
		t.Fatal(err)
	}
	want := append([]byte("# The groups of ../components/metrics/prometheusrule.yaml, which says why the thresholds are what they are.\n"), groups...)
	if *update {
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the component has: run go -C deploy test -run TestPlainRules . -args -update (%v)", path, err)
	}
}

// TestEachAlertHasARunbook: each alert says what is wrong, and links to its heading in docs/runbook.md.
func TestEachAlertHasARunbook(t *testing.T) {
	headings := anchors(documents(t)["docs/runbook.md"])
	for _, group := range alerts(t) {
		for _, rule := range group.Rules {
			link := rule.Annotations["runbook_url"]
			if anchor, ok := strings.CutPrefix(link, "https://github.com/refvol/refvol/blob/main/docs/runbook.md#"); !ok || !slices.Contains(headings, anchor) {
				t.Errorf("%s has the link %q, which leads to no heading", rule.Alert, link)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" || rule.For == nil {
				t.Errorf("%s lacks a summary, a description, a severity or a time", rule.Alert)
			}
		}
	}
}

// TestClusterStaysApart: what joins or adds up series of the alerts keeps clusters apart, whose nodes may have the same names. The dashboard
// shows the clusters that the user chooses.
func TestClusterStaysApart(t *testing.T) {
	grouping := regexp.MustCompile(`\b(?:by|on) \([^)]*\)`)
	for _, group := range alerts(t) {
		for _, rule := range group.Rules {
			for _, labels := range grouping.FindAllString(rule.Expr.StrVal, -1) {
				if !strings.Contains(labels, "cluster") {
					t.Errorf("%s: %q has no cluster", rule.Alert, labels)
				}
			}
		}
	}
	dashboard, err := os.ReadFile("dashboards/refvol.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(dashboard), "\n") {
		if expr, ok := strings.CutPrefix(strings.TrimSpace(line), `"expr": `); ok {
			if strings.Count(expr, `cluster=~\"$cluster\"`) != strings.Count(expr, "{") {
				t.Errorf("the dashboard has no cluster in %s", expr)
			}
			for _, labels := range grouping.FindAllString(expr, -1) {
				if strings.Contains(labels, "node") && !strings.Contains(labels, "cluster") {
					t.Errorf("the dashboard: %q has no cluster in %s", labels, expr)
				}
			}
		}
	}
}
