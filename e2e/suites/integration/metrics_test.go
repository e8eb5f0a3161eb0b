package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// scrape is what a plugin served at one moment, by the name of the metric.
type scrape map[string]*dto.MetricFamily

// scrapeText returns what the plugin serves at /metrics.
func (n *node) scrapeText() string {
	n.t.Helper()
	answer, err := harness.Get(n.t.Context(), "http://"+n.servingAddress()+"/metrics")
	if err != nil || answer.Status != 200 {
		n.t.Fatalf("scrape: %v, %v", answer, err)
	}
	return answer.Body
}

func (n *node) scrape() scrape {
	n.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := must.Get(parser.TextToMetricFamilies(strings.NewReader(n.scrapeText())))(n.t)
	return families
}

// series is a metric and the labels that it must have, as name{label="value"}, without regard to others.
type series string

// sum returns the sum of all values of a series; of a histogram, the number of observations.
func (s scrape) sum(of series) float64 {
	name, labels, _ := strings.Cut(strings.TrimSuffix(string(of), "}"), "{")
	sum := 0.0
	for _, metric := range s[name].GetMetric() {
		if hasLabels(metric, labels) {
			sum += metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func hasLabels(metric *dto.Metric, labels string) bool {
	has := map[string]bool{"": true}
	for _, pair := range metric.GetLabel() {
		has[fmt.Sprintf("%s=%q", pair.GetName(), pair.GetValue())] = true
	}
	for label := range strings.SplitSeq(labels, ",") {
		if !has[label] {
			return false
		}
	}
	return true
}

// counts waits until all series have the values.
func (n *node) counts(want map[series]float64) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		now := n.scrape()
		for of, value := range want {
			if got := now.sum(of); got != value {
				return fmt.Errorf("%s is %v, want %v", of, got, value)
			}
		}
		return nil
	})
}

// moves waits until all series have more than in an earlier scrape, by at least so much.
func (n *node) moves(since scrape, by map[series]float64) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		now := n.scrape()
		for of, least := range by {
			if got := now.sum(of) - since.sum(of); got < least {
				return fmt.Errorf("%s moved by %v, want %v", of, got, least)
			}
		}
		return nil
	})
}

// TestMetrics: the plugin serves each documented metric, in a form that Prometheus's linter accepts,
// from its start, and they move with what happens.
func TestMetrics(t *testing.T) {
	t.Parallel()
	n := newNode(t, anyPort, "--publish-wait=1s")
	start := n.scrape()
	for of, want := range map[series]float64{
		"refvol_volumes": 0, `refvol_writes_total{result="changed"}`: 0, "refvol_object_staleness_max_seconds": 0,
		"refvol_build_info": 1, "refvol_volume_limit_bytes": 512 << 20, `refvol_ready{condition="registration"}`: 0,
	} {
		if got := start.sum(of); got != want || start[strings.Split(string(of), "{")[0]] == nil {
			t.Errorf("at the start %s is %v, want %v", of, got, want)
		}
	}
	n.counts(map[series]float64{`refvol_ready{condition="rights"}`: 1}) // the API server is asked about them

	n.configMap("app", map[string]string{"key": n.canary()})
	n.secret("db", map[string]string{"key": n.canary()})
	v := n.volume(map[string]string{"sources": `[{configMap: {name: app}}, {secret: {name: db, items: [{key: key, path: password}]}}]`})
	n.publishes(v, soon)
	n.counts(map[series]float64{
		`refvol_volumes{condition="Current"}`: 1, "refvol_volumes": 1, "refvol_volume_bytes": float64(n.kernelCounts(v)), "refvol_volumes_without_token": 0,
		`refvol_objects{kind="ConfigMap",state="present"}`: 1, `refvol_objects{kind="Secret",state="present"}`: 1, "refvol_objects": 2,
		"refvol_stale_objects": 0,
		`refvol_csi_call_duration_seconds{method="NodePublishVolume",code="OK"}`: 1,
		`refvol_writes_total{result="changed"}`:                                  1,
		"refvol_propagation_seconds":                                             0,
	})

	// Only requests that are no watches take time: here an event on the pod.
	wantStatus(t, n.finalAnswer(n.short("not-there")), codes.NotFound)
	n.moves(start, map[series]float64{"rest_client_request_duration_seconds": 1})
	n.scrape().isDocumented(t)
	for _, name := range []string{n.namespace, v.Pod, v.UID, v.ID(), "not-there"} {
		if strings.Contains(n.scrapeText(), name) {
			t.Errorf("a label has %q, of which there are as many as users want", name)
		}
	}
	problems := must.Get(promlint.New(strings.NewReader(n.scrapeText())).Lint())(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	n.mustUnpublish(v)
	n.counts(map[series]float64{"refvol_volumes": 0, "refvol_objects": 0, "refvol_stale_objects": 0, "refvol_volume_bytes": 0})
}

// isDocumented compares a scrape with docs/metrics.md: the metrics with types and labels, and the values of
// the labels that have a table of their own.
func (s scrape) isDocumented(t *testing.T) {
	t.Helper()
	repo := must.Get(harness.Repository())(t)
	text := must.Get(os.ReadFile(filepath.Join(repo, "docs", "metrics.md")))(t)
	documented, served := map[string]bool{}, map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*?) ?\\|").FindAllSubmatch(text, -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(string(row[3]), -1)
		slices.Sort(labels)
		documented[fmt.Sprintf("%s, a %s with %s", row[1], row[2], labels)] = true
	}
	tables := map[string]string{"refvol_volumes with condition ": "Conditions", "refvol_objects with state ": "States"}
	for of, heading := range tables {
		_, section, _ := strings.Cut(string(text), "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
			documented[of+row[1]] = true
		}
	}
	for name, family := range s {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		labels := map[string]bool{}
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = true
				if of := name + " with " + pair.GetName() + " "; tables[of] != "" {
					served[of+pair.GetValue()] = true
				}
			}
		}
		served[fmt.Sprintf("%s, a %s with %s", name, strings.ToLower(family.GetType().String()), slices.Sorted(maps.Keys(labels)))] = true
	}
	if !maps.Equal(documented, served) {
		t.Errorf("documented are\n%s\nand served\n%s", strings.Join(slices.Sorted(maps.Keys(documented)), "\n"), strings.Join(slices.Sorted(maps.Keys(served)), "\n"))
	}
}
