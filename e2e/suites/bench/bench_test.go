package main

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

// TestScenarios runs the short form of each scenario. They check that nothing is missing or lost and judge no time.
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
			if err := b.runOne(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	if err := b.finish(); err != nil {
		t.Error(err)
	}
}
