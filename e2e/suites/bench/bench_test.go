package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

// TestDocumentedTable: the table of docs/benchmarks.md is that of results.json, with each goal.
func TestDocumentedTable(t *testing.T) {
	text, err := os.ReadFile("../../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	document := filepath.Join(t.TempDir(), "benchmarks.md")
	if err := os.WriteFile(document, text, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := measure.ReadFile("results.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.WriteTable(document, goals(), stepsTable(f)); err != nil {
		t.Fatal(err)
	}
	if made, err := os.ReadFile(document); err != nil || string(made) != string(text) {
		t.Errorf("docs/benchmarks.md is out of date: run make bench-table (%v)", err)
	}
}

// TestScenarios runs the short form of each scenario. They check that nothing is missing or lost and judge no time. All but one run in the
// suite's long form only.
func TestScenarios(t *testing.T) {
	b, err := newBench(t.Context(), settings{short: true}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
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
