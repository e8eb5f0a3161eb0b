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

// Eventually calls f until it returns nil, every 10 ms at first (see Poll), and fails the test with f's
// last error if that does not happen within timeout.
func Eventually(t TB, timeout time.Duration, f func() error) {
	t.Helper()
	if err := Poll(t.Context(), timeout, pollInterval, f); err != nil {
		t.Fatalf("%v", err)
	}
}

// patience is how long Poll calls f at its own interval; later it does so less and less often, so
// that many tests that wait leave the machine to what they wait for.
const (
	patience     = 3 * time.Second
	rarest       = 250 * time.Millisecond
	partOfPassed = 20
)

// Poll calls f until it returns nil: at every interval for some seconds, then after a twentieth of
// the time that has passed. f's last error is in the one that Poll returns when timeout or ctx ends
// the wait.
func Poll(ctx context.Context, timeout, interval time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin := time.Now()
	next := time.NewTimer(interval)
	defer next.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-next.C:
		case <-ctx.Done():
			return fmt.Errorf("not so within %s: %w", timeout, err)
		}
		pause := interval
		if passed := time.Since(begin); passed > patience {
			pause = max(interval, min(passed/partOfPassed, rarest))
		}
		next.Reset(pause)
	}
}
