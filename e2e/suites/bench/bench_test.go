package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
	tests "github.com/refvol/refvol/internal/must" // the scenarios have a must of their own
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, nil))
}

// TestDocumentedTable: the tables of docs/benchmarks.md and README.md are those of results.json, with each goal.
func TestDocumentedTable(t *testing.T) {
	copied := t.TempDir()
	s := settings{table: filepath.Join(copied, "benchmarks.md"), book: filepath.Join(copied, "README.md")}
	documents := map[string]string{"../../../docs/benchmarks.md": s.table, "README.md": s.book}
	texts := map[string]string{}
	for document, to := range documents {
		text := tests.Get(os.ReadFile(document))(t)
		texts[document] = string(text)
		tests.Do(t, os.WriteFile(to, text, 0o600))
	}
	tests.Do(t, s.writeTables())
	for document, made := range documents {
		if text, err := os.ReadFile(made); err != nil || string(text) != texts[document] {
			t.Errorf("%s is out of date: run make bench-table (%v)", document, err)
		}
	}
}

// TestScenarios runs the short form of each scenario. They check that nothing is missing or lost and judge no time. All but one run in the
// suite's long form only.
func TestScenarios(t *testing.T) {
	b, err := newBench(t.Context(), settings{short: true}, t.Output())
	tests.Do(t, err)
	defer func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	}()
	all := slices.DeleteFunc(scenarios(), func(s scenario) bool { return s.outside }) // it has no short form
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			if s.name != "update" && harness.Scaled(true, false) {
				t.Skipf("it runs in the long form (%s=1)", harness.LongVariable)
			}
			if err := b.runOne(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	if err := b.finish(); err != nil {
		t.Error(err)
	}
}
