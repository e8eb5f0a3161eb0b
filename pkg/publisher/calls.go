package publisher

import (
	"context"
	"errors"
)

// call is a CSI call under way on one volume. At most one runs per volume; a
// second is refused, but for an unpublish, which ends a publish.
type call struct {
	// cancel ends a publish that waits; nil for an unpublish.
	cancel context.CancelCauseFunc
	// done is closed when the call has returned.
	done chan struct{}
}

// errUnpublished is why a publish ends that an unpublish cancelled.
var errUnpublished = errors.New("the volume was unpublished meanwhile")

// beginPublish claims the volume for a publish. The returned context ends when an
// unpublish takes the volume over; the returned function must be called at the end.
func (p *Publisher) beginPublish(ctx context.Context, volumeID string) (context.Context, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls[volumeID] != nil {
		return nil, nil, errBusy(volumeID)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel, done: make(chan struct{})}
	p.calls[volumeID] = c
	return ctx, func() { p.end(volumeID, c); cancel(nil) }, nil
}

// beginUnpublish claims the volume for an unpublish: it cancels a publish and waits
// for its end.
func (p *Publisher) beginUnpublish(ctx context.Context, volumeID string) (func(), error) {
	for {
		p.mu.Lock()
		running := p.calls[volumeID]
		if running == nil {
			c := &call{done: make(chan struct{})}
			p.calls[volumeID] = c
			p.mu.Unlock()
			return func() { p.end(volumeID, c) }, nil
		}
		p.mu.Unlock()
		if running.cancel == nil {
			return nil, errBusy(volumeID)
		}
		running.cancel(errUnpublished)
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, errBusy(volumeID)
		}
	}
}

func (p *Publisher) end(volumeID string, c *call) {
	p.mu.Lock()
	delete(p.calls, volumeID)
	p.mu.Unlock()
	close(c.done)
}

func errBusy(volumeID string) error {
	return fail(ReasonBusy, "volume %s: another call on this volume runs", volumeID)
}
