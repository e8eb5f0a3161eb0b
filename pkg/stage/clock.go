package stage

import (
	"hash/fnv"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Clock has the pod's moment for the changes of one volume. A moment belongs to one state of the objects: what the pod takes at its moment may
// be retried, and what comes later waits for the next moment. It is not safe for concurrent use.
type Clock struct {
	pod    types.UID
	window time.Duration
	// at is the moment, or zero. taken are the versions that the pod takes since then, or nil.
	at    time.Time
	taken Versions
}

// NewClock returns the Clock of a pod whose changes are spread over a window.
func NewClock(pod types.UID, window time.Duration) *Clock { return &Clock{pod: pod, window: window} }

// wait returns the moment until which some versions wait, or zero if the pod may take them now. A moment that was missed by a whole window is
// over.
func (c *Clock) wait(ready Versions, now time.Time) time.Time {
	isMissed := !now.Before(c.at.Add(c.window))
	switch {
	case len(ready) == 0:
		c.end()
		return time.Time{}
	case c.taken != nil && maps.Equal(c.taken, ready): // a retry
		return time.Time{}
	case c.at.IsZero(), isMissed, c.taken != nil:
		c.at, c.taken = NextMoment(c.pod, c.window, now), nil
	case !now.Before(c.at):
		c.taken = ready
		return time.Time{}
	}
	return c.at
}

// end forgets the moment, because nothing waits for it.
func (c *Clock) end() { c.at, c.taken = time.Time{}, nil }

// NextMoment returns a pod's first moment after a time. Time is divided into windows, and a hash of the pod's UID gives the offset in each
// window. So nothing needs to be stored.
func NextMoment(pod types.UID, window time.Duration, after time.Time) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(pod))
	offset := time.Duration(hash.Sum64() % uint64(window))
	at := after.Add(-time.Duration(after.UnixNano() % int64(window))).Add(offset)
	if !at.After(after) {
		at = at.Add(window)
	}
	return at
}
