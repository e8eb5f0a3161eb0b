package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}

// TestSoak sees to it that the program works; what it is for takes hours.
func TestSoak(t *testing.T) {
	var out strings.Builder
	s := newSoak(&out, harness.Seed(t))
	defer func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	}()
	if err := s.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	if !strings.Contains(out.String(), "PASS: 1 round") {
		t.Error("the program did not say that all was well")
	}
}
