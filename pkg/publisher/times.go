package publisher

import "time"

// Retries after a failure start at retryMin and double up to retryMax, so that a volume recovers soon after the cause of the
// failure has gone.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
)

// earlier returns the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// isDue says whether a time has come; the zero time never does.
func isDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
