package deploy

import (
	"bytes"
	"flag"
	"os"
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

// TestEachAlertHasARunbook: docs/runbook.md says of each alert what it means, what to look at, and how to
// fix it, where the alert's link leads.
func TestEachAlertHasARunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		sections[title] = text
	}
	for _, group := range alerts(t) {
		for _, rule := range group.Rules {
			text, ok := sections[rule.Alert]
			if !ok {
				t.Errorf("docs/runbook.md has no heading %s", rule.Alert)
			}
			delete(sections, rule.Alert)
			for _, part := range []string{"\n**Meaning.** ", "\n**Look at.** ", "\n**Fix.** "} {
				if !strings.Contains(text, part) {
					t.Errorf("the section %s lacks %q", rule.Alert, part)
				}
			}
			const runbook = "https://github.com/refvol/refvol/blob/main/docs/runbook.md#"
			if got, want := rule.Annotations["runbook_url"], runbook+strings.ToLower(rule.Alert); got != want {
				t.Errorf("%s has the link %q, want %q", rule.Alert, got, want)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" || rule.For == nil {
				t.Errorf("%s lacks a summary, a description, a severity or a time", rule.Alert)
			}
		}
	}
	for title := range sections {
		t.Errorf("docs/runbook.md has %s, which is no alert", title)
	}
}
