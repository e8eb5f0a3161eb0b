package harness

import (
	"context"
	"fmt"
	"time"
)

// TB is what the helpers need of a *testing.T; it lets programs that are no tests use this package without linking
// package testing.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

const pollInterval = 10 * time.Millisecond

// Eventually calls f until it returns nil, every 10 ms at first (see Poll), and fails the test with f's last error if
// that does not happen within timeout.
func Eventually(t TB, timeout time.Duration, f func() error) {
	t.Helper()
	if err := Poll(t.Context(), timeout, pollInterval, f); err != nil {
		t.Fatalf("%v", err)
	}
}

// Poll calls f until it returns nil, or returns f's last error when timeout or ctx ends the wait. The interval
// grows to a twentieth of the time that has passed, so that many tests that wait leave the machine to what they wait for.
func Poll(ctx context.Context, timeout, interval time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	for {
		err := f()
		if err == nil {
			return nil
		}
		interval = max(interval, min(time.Since(begin)/20, 250*time.Millisecond))
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return fmt.Errorf("not so within %s: %w", timeout, err)
		}
	}
}
