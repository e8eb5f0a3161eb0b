package publisher

import "time"

// Retries after a failure start at retryMin and double up to retryMax. So a volume recovers soon after the cause of a failure is gone.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// reconcileTimeout limits one reconcile.
const reconcileTimeout = time.Minute

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// isDue reports whether a time has come. The zero time never comes.
func isDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
