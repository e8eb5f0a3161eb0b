package publisher

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// spreadError is why an update waits for the pod's moment. The volume is due again then.
type spreadError struct {
	at     time.Time
	window time.Duration
}

func (e *spreadError) Error() string {
	return fmt.Sprintf("a change is known, and the files take it up at %s (spread: %s)", e.at.UTC().Format(time.RFC3339), e.window)
}

// spreadMoment returns the first moment of a pod after a time: the clock is cut into windows, and a hash of the pod's UID says
// when in each. So nothing is stored, and later changes postpone nothing.
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

// spread returns a spreadError while a rendering of changed objects has to wait for the pod's moment, nil if it is to be
// written. What changes no file is written at once, and so is what mends the files.
func (v *vol) spread(ctx context.Context, next *payload.Rendering, got *answers) error {
	c := &v.contents
	if v.spec.Spread == 0 || !v.mounted || v.isUrgent(got) {
		return nil
	}
	now := time.Now()
	if !c.spreadAt.IsZero() && !now.Before(c.spreadAt) {
		return nil
	}
	same, whole := false, false
	err := v.through(ctx, func(mnt Mount) (err error) {
		same, whole, err = c.writer.Compare(ctx, mnt.Root(), next.Payload)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("compare the files of volume %s: %w", v.id, err)
	case same || !whole:
		return nil
	case c.spreadAt.IsZero():
		c.spreadAt = spreadMoment(v.specOf.Pod, v.spec.Spread, now)
	}
	c.changedAt = c.spreadAt // the wait is no part of the propagation
	return &spreadError{at: c.spreadAt, window: v.spec.Spread}
}

// isUrgent says whether what differs between the files and the answers does not wait: files that are not those of the record,
// objects that the pod may have again, and those that are deleted and whose files are to go.
func (v *vol) isUrgent(got *answers) bool {
	c := &v.contents
	if maps.Equal(c.shown, got.at) || v.spec.InPlace() && !c.proven {
		return true
	}
	for ref, version := range got.at {
		again := c.withdrawn[ref] && !got.refused[ref]
		gone := v.has(ref) && version.UID == "" && !got.refused[ref] && v.spec.RemoveDeleted()
		if again || gone {
			return true
		}
	}
	return false
}
