package publisher

import (
	"context"
	"sync/atomic"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// place is what a volume has of the render gate, from before a render until its files are
// written. The lock of the contents guards lane.
type place struct {
	// lane is where the volume has a place, nil for nowhere.
	lane *lane
	// waiting says that a goroutine waits for one.
	waiting atomic.Bool
}

// acquirePlace waits for the place of a new volume, for a render of so many bytes. It holds up
// nobody else: only the publish uses the volume yet, and an unpublish cancels the publish.
func (v *published) acquirePlace(ctx context.Context, heap int64) error {
	l := v.p.renders.lane(heap)
	if err := l.acquire(ctx, v.request.Pod.UID, v.p.stopping); err != nil {
		return fail(ReasonUnavailable, "%w: %w", errCrowded, err)
	}
	v.contents.place.lane = l
	return nil
}

// tryPlace takes a live volume's place for a render. If there is none, the result is false, and
// the volume is queued again once it has one: meanwhile neither a worker nor the
// lock of the contents waits, and files can be withdrawn. The caller holds that lock.
func (v *published) tryPlace(ctx context.Context, objects payload.Objects) bool {
	has := &v.contents.place
	l := v.p.renders.lane(payload.Heap(v.resolved, objects))
	if has.lane == l || has.lane == &v.p.renders.large {
		return true
	}
	v.releasePlace()
	if l.tryAcquire() {
		has.lane = l
		return true
	}
	if has.waiting.Swap(true) {
		return false
	}
	v.p.background.Go(func() {
		err := l.acquire(context.WithoutCancel(ctx), v.request.Pod.UID, v.p.stopping)
		has.waiting.Store(false)
		if err != nil {
			return // the plugin ends
		}
		defer v.p.queue.Add(v.request.VolumeID)
		if !v.contents.mu.TryLock() {
			l.release() // it is written just now, and that may hang
			return
		}
		defer v.contents.mu.Unlock()
		if v.contents.gone || has.lane != nil {
			l.release()
			return
		}
		has.lane = l
	})
	return false
}

// releasePlace gives a volume's place back, if it has one. The caller holds the lock of the
// contents.
func (v *published) releasePlace() {
	if l := v.contents.place.lane; l != nil {
		v.contents.place.lane = nil
		l.release()
	}
}

// yieldPlace is releasePlace for a volume that has no turn, whose lock the caller doesn't hold. Whoever
// holds it unpublishes the volume, which releases the place.
func (v *published) yieldPlace() {
	if v.contents.mu.TryLock() {
		v.releasePlace()
		v.contents.mu.Unlock()
	}
}

// parseCost is more memory, in bytes, than it takes to parse a byte of attributes.
const parseCost = 512

// withPlace calls do with a place for so many bytes, which a request that has no volume yet gives
// back at once.
func (p *Publisher) withPlace(ctx context.Context, request *Request, heap int64, do func()) error {
	l := p.renders.lane(heap)
	ctx, cancel := context.WithTimeout(ctx, p.opts.PublishWait)
	defer cancel()
	if err := l.acquire(ctx, request.Pod.UID, p.stopping); err != nil {
		return fail(ReasonUnavailable, "%w: %w", errCrowded, err)
	}
	defer l.release()
	do()
	return nil
}

// parse parses the attributes of a request. That takes memory too, so it needs a place.
func (p *Publisher) parse(ctx context.Context, request *Request, opts ...volume.Option) (spec *volume.Spec, err error) {
	size := 0
	for name, value := range request.Attributes {
		size += len(name) + len(value)
	}
	heap := int64(min(size, volume.MaxAttributesSize)) * parseCost
	if crowded := p.withPlace(ctx, request, heap, func() { spec, err = volume.Parse(request.Attributes, request.Pod, opts...) }); crowded != nil {
		return nil, crowded
	}
	if err != nil {
		return nil, fail(ReasonInvalid, "%w", err)
	}
	return spec, nil
}
