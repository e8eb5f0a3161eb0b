package publisher

import (
	"fmt"
	"hash/fnv"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// spread is the pod's moment for a change that waits. The zero value is no moment. Call end when no change waits any more: otherwise a
// moment that has passed would apply to a later change.
type spread struct{ at time.Time }

// isNow reports whether the moment has come.
func (s *spread) isNow(now time.Time) bool { return isDue(s.at, now) }

// end forgets the moment.
func (s *spread) end() { s.at = time.Time{} }

// delay returns a failure until the pod's moment, and nil afterwards. Later changes don't delay it.
func (s *spread) delay(pod volume.Pod, window time.Duration, now time.Time) *failure {
	switch {
	case s.at.IsZero():
		s.at = spreadMoment(pod, window, now)
	case s.isNow(now):
		return nil
	}
	return &failure{
		err:   fmt.Errorf("there is a change, which the files will show at %s (spread: %s)", s.at.UTC().Format(time.RFC3339), window),
		event: string(ConditionSpreading), kind: "spread", until: s.at,
	}
}

// spreadMoment returns a pod's first moment after a time. Time is divided into windows, and a hash of the pod's UID gives the offset in
// each window. So nothing needs to be stored.
func spreadMoment(pod volume.Pod, window time.Duration, after time.Time) time.Time {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(pod.UID))
	offset := time.Duration(hash.Sum64() % uint64(window))
	at := after.Add(-time.Duration(after.UnixNano() % int64(window))).Add(offset)
	if !at.After(after) {
		at = at.Add(window)
	}
	return at
}
