package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
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
	return only[*monitoringv1.PrometheusRule](t, brought(t, "metrics", false)).Spec.Groups
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
			wantDocumented(t, rule.Alert, rule.Expr.StrVal)
		}
	}
}

// wantDocumented wants each metric of an expression in docs/metrics.md.
func wantDocumented(t *testing.T, of, expr string) {
	t.Helper()
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	// What Prometheus, kube-state-metrics and all programs in Go have is not the plugin's to document.
	others := []string{"up", "kube_daemonset_status_number_unavailable", "kube_daemonset_status_updated_number_scheduled", "kube_daemonset_status_desired_number_scheduled", "kube_node_status_condition", "kube_pod_info", "kube_pod_status_ready", "process_resident_memory_bytes", "process_cpu_seconds_total"}
	metrics := regexp.MustCompile(`\b(up|[a-z]+_[a-z_]+)\s*[{>/)]`).FindAllStringSubmatch(expr, -1)
	if len(metrics) == 0 {
		t.Errorf("%s: no metric in %s", of, expr)
	}
	for _, m := range metrics {
		name := m[1]
		documented := slices.Contains(others, name)
		for _, suffix := range []string{"", "_bucket", "_count", "_sum"} {
			documented = documented || bytes.Contains(page, []byte("\n| `"+strings.TrimSuffix(name, suffix)+"` |"))
		}
		if !documented {
			t.Errorf("%s: docs/metrics.md has no %s", of, name)
		}
	}
}

// TestDashboard: every query of the dashboard is for the data source and the nodes that its user chooses, and
// its metrics are documented.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("dashboards", "refvol.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID, Title string
		Panels     []struct {
			ID          int
			Type, Title string
			Description string
			Targets     []struct {
				Expr       string
				Datasource struct{ UID string }
			}
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" || len(dashboard.Panels) == 0 {
		t.Fatal("the dashboard is empty")
	}
	ids := map[int]bool{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("two panels have the id %d", panel.ID)
		}
		ids[panel.ID] = true
		if panel.Type != "row" && (len(panel.Targets) == 0 || panel.Description == "") {
			t.Errorf("the panel %q lacks a query or a description", panel.Title)
		}
		for _, target := range panel.Targets {
			if target.Datasource.UID != "${datasource}" || !strings.Contains(target.Expr, `{job="refvol-plugin", node=~"$node"`) {
				t.Errorf("the panel %q asks %s for %s", panel.Title, target.Datasource.UID, target.Expr)
			}
			wantDocumented(t, "the panel "+panel.Title, target.Expr)
		}
	}
}
