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

// showed tells the observer that the files have just changed, if that is what a change was waiting
// for. The caller holds the lock of the pod.
func (c *contents) showed(o Observer) {
	if !c.changedAt.IsZero() {
		o.Propagated(time.Since(c.changedAt))
	}
	c.changedAt = time.Time{}
}
