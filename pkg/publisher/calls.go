package publisher

import (
	"context"
	"errors"
)

// call is a CSI call under way on one volume. At most one runs per volume; a
// second is refused, but for an unpublish, which ends a publish.
type call struct {
	// cancel ends a publish that waits.
	cancel context.CancelCauseFunc
	// internal says that it is no CSI call, but the take-over of a volume that was found: a publish
	// waits for its end.
	internal bool
	// unpublish says that nothing cancels it.
	unpublish bool
	// done is closed when the call has returned.
	done chan struct{}
}

// errUnpublished is why a publish ends that an unpublish cancelled.
var errUnpublished = errors.New("the volume was unpublished meanwhile")

// beginPublish claims the volume for a publish. The returned context ends when an
// unpublish takes the volume over; the returned function must be called at the end.
func (p *Publisher) beginPublish(ctx context.Context, volumeID string) (context.Context, func(), error) {
	for {
		c := &call{}
		claimed, running := p.claim(ctx, volumeID, c)
		if running == nil {
			return claimed, func() { p.end(volumeID, c) }, nil
		}
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

// beginTakeOver is beginPublish for a volume that was found. It does not wait for a CSI call.
func (p *Publisher) beginTakeOver(ctx context.Context, volumeID string) (context.Context, func(), error) {
	c := &call{internal: true}
	claimed, running := p.claim(ctx, volumeID, c)
	if running != nil {
		return nil, nil, errBusy(volumeID)
	}
	return claimed, func() { p.end(volumeID, c) }, nil
}

// beginUnpublish claims the volume for an unpublish: it cancels a publish and waits
// for its end.
func (p *Publisher) beginUnpublish(ctx context.Context, volumeID string) (func(), error) {
	for {
		c := &call{unpublish: true}
		_, running := p.claim(ctx, volumeID, c)
		if running == nil {
			return func() { p.end(volumeID, c) }, nil
		}
		if running.unpublish {
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

// claim makes c the call on a volume, or returns the one that is under way. The returned context ends when
// c is cancelled.
func (p *Publisher) claim(ctx context.Context, volumeID string, c *call) (claimed context.Context, running *call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[volumeID]
	if v == nil {
		v = &published{p: p, request: Request{VolumeID: volumeID}}
		p.volumes[volumeID] = v
	}
	if v.call != nil {
		return nil, v.call
	}
	ctx, c.cancel = context.WithCancelCause(ctx)
	c.done = make(chan struct{})
	v.call = c
	return ctx, nil
}

func (p *Publisher) end(volumeID string, c *call) {
	p.mu.Lock()
	v := p.volumes[volumeID]
	v.call = nil
	if v.state == gone {
		delete(p.volumes, volumeID)
	}
	p.mu.Unlock()
	c.cancel(nil)
	close(c.done)
}

func errBusy(volumeID string) error {
	return fail(ReasonBusy, "volume %s: another call on this volume runs", volumeID)
}
