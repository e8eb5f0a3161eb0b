package main

import (
	"context"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

// TestScenarios runs the short form of each scenario, which checks that nothing is missing
// or lost and judges no time.
func TestScenarios(t *testing.T) {
	b, err := newBench(t.Context(), settings{short: true}, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(b.dir)
	for _, s := range scenarios() {
		if s.outside {
			continue // it has no short form
		}
		t.Run(s.name, func(t *testing.T) {
			if err := b.runOne(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
	if err := b.write(); err != nil {
		t.Error(err)
	}
}
