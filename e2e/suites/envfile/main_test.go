package envfile

import (
	"context"
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// Values that a shell takes for commands would run as whoever runs the tests.
func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}
