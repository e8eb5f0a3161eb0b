package publisher

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// The memory that is used for renders of all volumes together is at most four times that of the largest
// one: that of three large ones, and as much as one for small ones. Nearly all volumes are small, and
// never wait for a large one. A pod waits for one render at most, so first come, first served is fair.
const (
	largeRenders = 3 * payload.MaxHeap
	smallRenders = payload.MaxHeap
	// smallHeap is the most memory, in bytes, that a small render takes.
	smallHeap = 1 << 20
)

var (
	// errCrowded is why a volume waits for its render.
	errCrowded = errors.New("the volumes that are rendered just now take all the memory there is for that")
	// errPodBusy is why a call waits for its pod.
	errPodBusy = errors.New("another volume of the pod is being written")
	// errStopping is why a wait ends early.
	errStopping = errors.New("the plugin is stopping")
)

// renderMemory bounds the memory of renders. It is held while a tree is rendered, and never over a system
// call: what may hang holds no memory that others wait for. It is safe for concurrent use.
type renderMemory struct{ small, large *semaphore.Weighted }

func newRenderMemory() renderMemory {
	return renderMemory{small: semaphore.NewWeighted(smallRenders), large: semaphore.NewWeighted(largeRenders)}
}

// of returns where a render of so many bytes takes its memory, and how much it takes.
func (m renderMemory) of(heap int64) (*semaphore.Weighted, int64) {
	if heap <= smallHeap {
		return m.small, heap
	}
	return m.large, min(heap, payload.MaxHeap)
}

// acquire waits for the memory of a render, in bytes. The caller releases it.
func (m renderMemory) acquire(ctx context.Context, heap int64) (release func(), err error) {
	if release := m.tryAcquire(heap); release != nil {
		return release, nil // also of a ctx that has ended
	}
	from, heap := m.of(heap)
	if err := from.Acquire(ctx, heap); err != nil {
		return nil, fail(ReasonUnavailable, "%w: %w", errCrowded, context.Cause(ctx))
	}
	return func() { from.Release(heap) }, nil
}

// tryAcquire is acquire if that need not wait, or returns nil.
func (m renderMemory) tryAcquire(heap int64) (release func()) {
	from, heap := m.of(heap)
	if !from.TryAcquire(heap) {
		return nil
	}
	return func() { from.Release(heap) }
}

const (
	// parseCost is more memory, in bytes, than it takes to parse a byte of attributes, and resolveCost than it takes to
	// resolve what a byte of a pod's spec says: an item has eight at least.
	parseCost, resolveCost = 512, 50
	// resolveBase is what the smallest resolving takes.
	resolveBase = 64 << 10
)

// parse parses the attributes of a request.
func (p *Publisher) parse(ctx context.Context, worker *podWorker, request *Request, opts ...volume.Option) (spec *volume.Spec, err error) {
	size := 0
	for name, value := range request.Attributes {
		size += len(name) + len(value)
	}
	heap := int64(min(size, volume.MaxAttributesSize)) * parseCost
	crowded := p.inTurn(ctx, worker, heap, func() { spec, err = volume.Parse(request.Attributes, request.Pod, opts...) })
	if crowded != nil {
		return nil, crowded
	}
	if err != nil {
		return nil, fail(ReasonInvalid, "%w", err)
	}
	return spec, nil
}

// inTurn calls do with the lock of a pod, and with so many bytes of memory.
func (p *Publisher) inTurn(ctx context.Context, worker *podWorker, heap int64, do func()) error {
	if err := worker.lock(ctx); err != nil {
		return fail(ReasonUnavailable, "%w: %w", errPodBusy, err)
	}
	defer worker.unlock()
	release, err := p.renders.acquire(ctx, heap)
	if err != nil {
		return err
	}
	defer release()
	do()
	return nil
}
