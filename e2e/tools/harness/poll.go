package harness

import (
	"context"
	"fmt"
	"time"
)

// TB is what the helpers need of a *testing.T; it lets programs that are no tests
// use this package without linking package testing.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

const pollInterval = 10 * time.Millisecond

// Eventually calls f every 10 ms until it returns nil, and fails the test with f's
// last error if that does not happen within timeout.
func Eventually(t TB, timeout time.Duration, f func() error) {
	t.Helper()
	if err := Poll(t.Context(), timeout, pollInterval, f); err != nil {
		t.Fatalf("%v", err)
	}
}

// Poll calls f at every interval until it returns nil; f's last error is in the one
// that Poll returns when timeout or ctx ends the wait.
func Poll(ctx context.Context, timeout, interval time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not so within %s: %w", timeout, err)
		}
	}
}
