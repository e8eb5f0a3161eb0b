package publisher

import "time"

// Observer hears what happens to volumes, for metrics; *metrics.Metrics is one. Its methods must
// return at once, and must be safe for concurrent use.
type Observer interface {
	// Wrote hears of each try to write a volume's files: whether they changed, how many bytes were
	// written, and why it failed.
	Wrote(changed bool, bytes int64, err error)
	// Propagated hears how long it took from the moment at which the process learnt of a change
	// until a mounted volume showed it.
	Propagated(took time.Duration)
}

// noObserver is for who wants none.
type noObserver struct{}

func (noObserver) Wrote(bool, int64, error) {}
func (noObserver) Propagated(time.Duration) {}

// takeChange begins an update with the changes that came until now. due says, once per resync, that
// the volume's objects are to be refreshed. The caller holds the lock of the contents.
func (v *published) takeChange() (due bool) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.contents.changedAt.IsZero() {
		v.contents.changedAt = v.changedAt
	}
	due = v.due
	v.due, v.changedAt = false, time.Time{}
	return due
}

// showed tells the observer that the files have just changed, if that is what a change was waiting
// for. The caller holds the lock of the contents.
func (c *contents) showed(o Observer) {
	if !c.changedAt.IsZero() {
		o.Propagated(time.Since(c.changedAt))
	}
	c.changedAt = time.Time{}
}
