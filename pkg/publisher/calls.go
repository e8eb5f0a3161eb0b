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
	// internal says that it is no CSI call, but the take-over of a restored volume: a publish
	// waits for its end.
	internal bool
	// done is closed when the call has returned.
	done chan struct{}
}

// errUnpublished is why a publish ends that an unpublish cancelled.
var errUnpublished = errors.New("the volume was unpublished meanwhile")

// beginPublish claims the volume for a publish. The returned context ends when an
// unpublish takes the volume over; the returned function must be called at the end.
func (p *Publisher) beginPublish(ctx context.Context, volumeID string) (context.Context, func(), error) {
	for {
		p.mu.Lock()
		running := p.calls[volumeID]
		if running == nil {
			ctx, end := p.begin(ctx, volumeID, &call{})
			p.mu.Unlock()
			return ctx, end, nil
		}
		p.mu.Unlock()
		if !running.internal {
			return nil, nil, errBusy(volumeID)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, nil, errBusy(volumeID)
		}
	}
}

// beginTakeOver is beginPublish for a restored volume. It does not wait for a CSI call.
func (p *Publisher) beginTakeOver(ctx context.Context, volumeID string) (context.Context, func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls[volumeID] != nil {
		return nil, nil, errBusy(volumeID)
	}
	ctx, end := p.begin(ctx, volumeID, &call{internal: true})
	return ctx, end, nil
}

// begin notes a call that an unpublish can cancel. The caller holds mu.
func (p *Publisher) begin(ctx context.Context, volumeID string, c *call) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.cancel, c.done = cancel, make(chan struct{})
	p.calls[volumeID] = c
	return ctx, func() { p.end(volumeID, c); cancel(nil) }
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
