package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

// rule is an alert of the chart's PrometheusRule.
type rule struct {
	Alert, Expr string
	Annotations map[string]string
}

// loadRules reads the PrometheusRule that the chart has installed.
func (s *stranger) loadRules() {
	s.t.Helper()
	var list struct {
		Items []struct {
			Spec struct{ Groups []struct{ Rules []rule } }
		}
	}
	if err := json.Unmarshal([]byte(s.output("kubectl --namespace refvol-system get prometheusrules --output json")), &list); err != nil {
		s.t.Fatal(err)
	}
	for _, item := range list.Items {
		for _, group := range item.Spec.Groups {
			s.rules = append(s.rules, group.Rules...)
		}
	}
	if len(s.rules) == 0 {
		s.t.Fatal("the chart has installed no alert")
	}
}

// wantAlerts waits until the expressions of these alerts, and of no other, find something in what the plugins
// serve. How long a fault must last is left out.
func (s *stranger) wantAlerts(want ...string) {
	s.t.Helper()
	var exprs []string
	for _, r := range s.rules {
		exprs = append(exprs, r.Expr)
	}
	eventually(s.t, podTimeout, fmt.Sprintf("the alerts %q", want), func(ctx context.Context) error {
		scrapes, err := s.scrape(ctx)
		if err != nil {
			return err
		}
		found, err := s.prometheus.Query(ctx, scrapes, 0, exprs...)
		if err != nil {
			return err
		}
		var alerts []string
		for i, samples := range found {
			for _, sample := range samples {
				alerts = append(alerts, s.rules[i].Alert+" "+sample.Labels["condition"]+" "+sample.Labels["node"])
			}
		}
		if !slices.Equal(alerts, want) {
			return fmt.Errorf("they are %q", alerts)
		}
		return nil
	})
}

// scrape does what the chart's PodMonitor has Prometheus do.
func (s *stranger) scrape(ctx context.Context) ([]harness.Scrape, error) {
	plugins, err := s.client.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + s.app})
	if err != nil {
		return nil, err
	}
	var scrapes []harness.Scrape
	for i := range plugins.Items {
		p := &plugins.Items[i]
		text, err := s.client.CoreV1().Pods(s.name).ProxyGet("http", p.Name, "9810", "/metrics", nil).DoRaw(ctx)
		if err := errors.Join(err, leak.Check("/metrics of "+p.Name, string(text))); err != nil {
			return nil, err
		}
		scrapes = append(scrapes, harness.Scrape{Labels: map[string]string{"job": s.app, "node": p.Spec.NodeName}, Text: string(text)})
	}
	return scrapes, nil
}

// wantRunbook wants an alert to link to an entry of the runbook that has a text.
func (s *stranger) wantRunbook(alert, text string) {
	s.t.Helper()
	for _, r := range s.rules {
		if r.Alert != alert {
			continue
		}
		page, anchor, _ := strings.Cut(r.Annotations["runbook_url"], "#")
		for _, entry := range strings.Split(s.runbook, "\n## ")[1:] {
			heading, body, _ := strings.Cut(entry, "\n")
			if strings.HasSuffix(page, "/docs/runbook.md") && strings.ToLower(heading) == anchor && strings.Contains(body, text) {
				return
			}
		}
		s.t.Errorf("%s links to %s, where no entry has %q", alert, r.Annotations["runbook_url"], text)
		return
	}
	s.t.Errorf("no alert %s", alert)
}

// runbookStatus returns the runbook's command that lists the volumes of a node.
func (s *stranger) runbookStatus() string {
	s.t.Helper()
	command := regexp.MustCompile(`kubectl .* exec POD -- .*`).FindString(s.runbook)
	if command == "" {
		s.t.Fatal("the runbook has no command for the status of a node")
	}
	return command
}
