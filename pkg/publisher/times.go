package publisher

import "time"

// earlier returns the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// isDue says whether a time has come; the zero time never does.
func isDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
