package seen

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
	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// moves waits until all series have more than in an earlier scrape, by at least so much.
func moves(n *world.Node, since world.Scrape, by map[world.Series]float64) {
	n.T.Helper()
	harness.Eventually(n.T, world.Soon, func() error {
		now := n.Scrape()
		for of, least := range by {
			if got := now.Sum(of) - since.Sum(of); got < least {
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
	n := lab.NewNode(t, world.AnyPort, "--publish-wait=1s")
	start := n.Scrape()
	for of, want := range map[world.Series]float64{
		"refvol_volumes": 0, `refvol_writes_total{result="changed"}`: 0, "refvol_object_staleness_max_seconds": 0,
		"refvol_build_info": 1, "refvol_volume_limit_bytes": 512 << 20, `refvol_ready{condition="registration"}`: 0,
	} {
		if got := start.Sum(of); got != want || start[strings.Split(string(of), "{")[0]] == nil {
			t.Errorf("at the start %s is %v, want %v", of, got, want)
		}
	}
	n.Counts(map[world.Series]float64{`refvol_ready{condition="rights"}`: 1}) // the API server is asked about them

	n.ConfigMap("app", map[string]string{"key": n.Canary()})
	n.Secret("db", map[string]string{"key": n.Canary()})
	v := n.Volume(map[string]string{"sources": `[{configMap: {name: app}}, {secret: {name: db, items: [{key: key, path: password}]}}]`})
	n.Publishes(v, world.Soon)
	n.Counts(map[world.Series]float64{
		`refvol_volumes{condition="Current"}`: 1, "refvol_volumes": 1, "refvol_volume_bytes": float64(n.KernelCounts(v)), "refvol_volumes_without_token": 0,
		`refvol_objects{kind="ConfigMap",state="present"}`: 1, `refvol_objects{kind="Secret",state="present"}`: 1, "refvol_objects": 2,
		"refvol_stale_objects": 0,
		`refvol_csi_call_duration_seconds{method="NodePublishVolume",code="OK"}`: 1,
		`refvol_writes_total{result="changed"}`:                                  1,
		"refvol_propagation_seconds":                                             0,
	})

	// Only requests that are no watches take time: here an event on the pod.
	world.WantStatus(t, n.FinalAnswer(n.Short("not-there")), codes.NotFound)
	moves(n, start, map[world.Series]float64{"rest_client_request_duration_seconds": 1})
	isDocumented(t, n.Scrape())
	for _, name := range []string{n.Namespace, v.Pod, v.UID, v.ID(), "not-there"} {
		if strings.Contains(n.ScrapeText(), name) {
			t.Errorf("a label has %q, of which there are as many as users want", name)
		}
	}
	problems := must.Get(promlint.New(strings.NewReader(n.ScrapeText())).Lint())(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	n.MustUnpublish(v)
	n.Counts(map[world.Series]float64{"refvol_volumes": 0, "refvol_objects": 0, "refvol_stale_objects": 0, "refvol_volume_bytes": 0})
}

// isDocumented compares a scrape with docs/metrics.md: the metrics with types and labels, and the values of
// the labels that have a table of their own.
func isDocumented(t *testing.T, s world.Scrape) {
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
