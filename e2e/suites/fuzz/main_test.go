// Package fuzz drives the plugin's own code over its real sockets, with real mounts, by
// requests that nobody sane would send. What its tests look for is one thing: that nothing is
// created, changed, unmounted or deleted but at the target of a volume.
package fuzz

import (
	"context"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// go runs the workers of a fuzzing run as children of the process that is in the sandbox
// already; they share its mounts, and each has directories of its own.
func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}
