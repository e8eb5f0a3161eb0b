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

	"github.com/refvol/refvol/e2e/tools/harness"
)

// isDocumented compares a scrape with docs/metrics.md: the metrics with types and labels, and the values of
// the labels that have a table of their own.
func (s scrape) isDocumented(t *testing.T) {
	t.Helper()
	repo, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(repo, "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (\\w+) \\| ([^|]*?) ?\\|").FindAllSubmatch(text, -1) {
		labels := regexp.MustCompile(`\w+`).FindAllString(string(row[3]), -1)
		slices.Sort(labels)
		documented[fmt.Sprintf("%s, a %s with %s", row[1], row[2], labels)] = true
	}
	wantSame(t, documented, s.described())
	for heading, of := range map[string][2]string{"Conditions": {"refvol_volumes", "condition"}, "States": {"refvol_objects", "state"}} {
		_, section, _ := strings.Cut(string(text), "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		values := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
			values[row[1]] = true
		}
		wantSame(t, values, s.values(of[0], of[1]))
	}
}

// described returns each metric of the plugin's own as docs/metrics.md does.
func (s scrape) described() map[string]bool {
	served := map[string]bool{}
	for name, family := range s {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		labels := map[string]bool{}
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = true
			}
		}
		served[fmt.Sprintf("%s, a %s with %s", name, strings.ToLower(family.GetType().String()), slices.Sorted(maps.Keys(labels)))] = true
	}
	return served
}

// values returns the values of a label.
func (s scrape) values(name, label string) map[string]bool {
	values := map[string]bool{}
	for _, metric := range s[name].GetMetric() {
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label {
				values[pair.GetValue()] = true
			}
		}
	}
	return values
}

func wantSame(t *testing.T, documented, served map[string]bool) {
	t.Helper()
	if !maps.Equal(documented, served) {
		t.Errorf("documented are\n%s\nand served\n%s", strings.Join(slices.Sorted(maps.Keys(documented)), "\n"), strings.Join(slices.Sorted(maps.Keys(served)), "\n"))
	}
}
