// Package notify runs refvol-notify beside programs that it has pick up a change, with the configurations of docs/apply.md. Prometheus is built
// from Go modules. nginx is the Debian package nginx-light.
package notify

import (
	"context"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// program is refvol-notify. TestMain sets it before any test runs, and it is constant from then on.
var program string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(ctx context.Context) (func() error, error) {
		dir, err := os.MkdirTemp("", "refvol-notify-")
		if err != nil {
			return nil, err
		}
		remove := func() error { return os.RemoveAll(dir) }
		program, err = harness.BuildNotify(ctx, dir, os.Stderr)
		return remove, err
	}))
}
