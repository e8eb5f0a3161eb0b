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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/must"
)

var update = flag.Bool("update", false, "write alerts/refvol.rules.yaml anew")

func alerts(t *testing.T) []monitoringv1.RuleGroup {
	t.Helper()
	return only[*monitoringv1.PrometheusRule](t, renderWith(t, []string{"metrics"})).Spec.Groups
}

// TestPlainRules: the rules for a Prometheus without the operator are those of the component.
func TestPlainRules(t *testing.T) {
	const path = "alerts/refvol.rules.yaml"
	groups := must.Get(yaml.Marshal(map[string]any{"groups": alerts(t)}))(t)
	want := append([]byte("# The groups of ../components/metrics/prometheusrule.yaml, which says why the thresholds are what they are.\n"), groups...)
	if *update {
		must.Do(t, os.WriteFile(path, want, 0o600))
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
	dashboard := must.Get(os.ReadFile("dashboards/refvol.json"))(t)
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

// TestPodMonitors: the plugin's series have the labels that the alerts name. What the sidecars of tenants serve is bounded, and can't be
// taken for the plugin's.
func TestPodMonitors(t *testing.T) {
	for component, test := range map[string]struct {
		monitor string
		want    monitoringv1.PodMonitorSpec
	}{
		"metrics": {"refvol-plugin", monitoringv1.PodMonitorSpec{
			JobLabel: "app.kubernetes.io/name", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": name}},
			PodMetricsEndpoints: []monitoringv1.PodMetricsEndpoint{{
				Port: new("http"), Path: "/metrics", Interval: "30s",
				RelabelConfigs: []monitoringv1.RelabelConfig{{SourceLabels: []monitoringv1.LabelName{"__meta_kubernetes_pod_node_name"}, TargetLabel: "node"}},
			}},
		}},
		"restart-metrics": {"refvol-notify", monitoringv1.PodMonitorSpec{
			NamespaceSelector: monitoringv1.NamespaceSelector{Any: true}, SampleLimit: new(uint64(50)), LabelLimit: new(uint64(30)),
			PodMetricsEndpoints: []monitoringv1.PodMetricsEndpoint{{
				Port: new("refvol-notify"), Path: "/metrics", Interval: "30s",
				MetricRelabelConfigs: []monitoringv1.RelabelConfig{{SourceLabels: []monitoringv1.LabelName{"__name__"}, Regex: "refvol_notify_.+", Action: "keep"}},
			}},
		}},
	} {
		set := []string{component}
		if component == "restart-metrics" {
			set = []string{"restart", component}
		}
		if got := only[*monitoringv1.PodMonitor](t, renderWith(t, set)); got.Name != test.monitor || string(asJSON(t, got.Spec)) != string(asJSON(t, test.want)) {
			t.Errorf("%s: %s is %s, want %s", component, got.Name, asJSON(t, got.Spec), asJSON(t, test.want))
		}
	}
	chart := only[*monitoringv1.PodMonitor](t, chartObjects(t, newest, values{
		"restart": values{"enabled": true, "podMonitor": true}, "metrics": values{"interval": "15s", "labels": values{"release": "x"}},
	}))
	if chart.Name != "refvol-notify" || chart.Spec.PodMetricsEndpoints[0].Interval != "15s" || chart.Labels["release"] != "x" {
		t.Errorf("the chart's monitor is %s", asJSON(t, chart))
	}
}

// TestChartAlerts: a value changes one alert, and no other.
func TestChartAlerts(t *testing.T) {
	with := func(alerts values) values {
		return values{"metrics": values{"enabled": true, "prometheusRule": values{"alerts": alerts}}}
	}
	rules := func(alerts values) []monitoringv1.Rule {
		return only[*monitoringv1.PrometheusRule](t, chartObjects(t, newest, with(alerts))).Spec.Groups[0].Rules
	}
	want := rules(nil)
	for i := range want {
		switch rule := &want[i]; rule.Alert {
		case "RefvolPluginDown":
			rule.For, rule.Labels["severity"], rule.Labels["team"] = new(monitoringv1.Duration("10m")), "warning", "x"
		case "RefvolPropagationSlow":
			rule.Expr.StrVal = "vector(1) > 7"
		}
	}
	want = slices.DeleteFunc(want, func(rule monitoringv1.Rule) bool { return rule.Alert == "RefvolVolumesHeld" })
	got := rules(values{
		"RefvolPluginDown":      values{"for": "10m", "labels": values{"severity": "warning", "team": "x"}},
		"RefvolPropagationSlow": values{"expr": "vector(1) > 7"},
		"RefvolVolumesHeld":     values{"enabled": false},
	})
	if got, want := string(asJSON(t, got)), string(asJSON(t, want)); got != want {
		t.Errorf("the alerts are\n%s\nwant\n%s", got, want)
	}
	for _, test := range []struct {
		alerts values
		says   string
	}{
		{values{"RefvolPluginDwn": values{"for": "10m"}}, "metrics.prometheusRule.alerts: Not found: RefvolPluginDwn"},
		{values{"RefvolPluginDown": values{"for": "soon"}}, "/metrics/prometheusRule/alerts/RefvolPluginDown/for"},
		{values{"RefvolPluginDown": values{"threshold": 1}}, "/metrics/prometheusRule/alerts/RefvolPluginDown"},
	} {
		if _, _, err := renderChart(newest, with(test.alerts)); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: got %v, want %q", test.alerts, err, test.says)
		}
	}
}
