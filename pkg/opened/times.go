package opened

import "time"

// earlier returns the earlier of two times. Zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// isDue reports whether a time has come. The zero time never comes.
func isDue(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }
