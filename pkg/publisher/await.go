package publisher

import (
	"context"
	"errors"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// refreshBackoff is how often a publish that waits asks again for what it lacks, where
// nothing tells of changes: after a second, and up to ten.
func refreshBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 1.5, Jitter: 0.2, Cap: 10 * time.Second, Steps: math.MaxInt}
}

// await returns what a new volume is to show, and of which versions, with a place at the
// render gate until that is written. It
// waits while required objects or keys are missing or their state is not known
// yet; each change of one of them wakes it, and where nothing tells of changes, it asks
// again from time to time.
func (p *Publisher) await(ctx context.Context, v *published) (*payload.Rendering, record.Versions, error) {
	ctx, cancel := context.WithDeadline(ctx, v.deadline)
	defer cancel()
	p.opts.Objects.Prioritize(v.request.Pod, v.refs)
	backoff := refreshBackoff()
	refresh := time.NewTimer(backoff.Step())
	defer refresh.Stop()
	for {
		shown, at, err := p.look(ctx, v)
		if err == nil {
			v.condition.set(nil)
			return shown, at, nil
		}
		if !mayPass(err) {
			return nil, nil, asReason(err)
		}
		p.announce(v, err)
		select {
		case <-v.wake:
		case <-refresh.C:
			p.opts.Objects.Refresh(v.request.Pod, p.lacking(v, err))
			refresh.Reset(backoff.Step())
		case <-p.stopping:
			return nil, nil, fail(ReasonUnavailable, "%w: %w", errStopping, err)
		case <-ctx.Done():
			// Why the state of an object is not known may have become known since.
			shown, at, err := p.look(ctx, v)
			return shown, at, asReason(err)
		}
	}
}

// lacking returns the objects that a publish waits for, which failed with err.
func (p *Publisher) lacking(v *published, err error) []volume.Ref {
	var refs []volume.Ref
	var missing *payload.MissingError
	if errors.As(err, &missing) {
		for _, m := range missing.Missing {
			refs = append(refs, m.Ref)
		}
		return refs
	}
	for _, ref := range v.refs {
		if _, err := p.opts.Objects.GetObject(v.request.Pod, ref); err != nil {
			refs = append(refs, ref)
		}
	}
	return refs
}

// announce tells the pod's author what its publish waits for, when that changes. That
// the state of an object is not known yet is nobody's fault, as a rule for a moment.
func (p *Publisher) announce(v *published, err error) {
	var missing *payload.MissingError
	if errors.As(err, &missing) && v.condition.set(err) && p.isNews(v.request.VolumeID, err.Error()) {
		p.warn(v, eventReason(err, never), err)
	}
}

// look renders what is known now of a volume's objects. If it succeeds the volume has a place
// at the render gate.
func (p *Publisher) look(ctx context.Context, v *published) (*payload.Rendering, record.Versions, error) {
	objects, at, err := p.snapshot(v)
	if denied := p.denied(v); err == nil && ReasonOf(denied) == ReasonForbidden {
		err = denied // a new volume must not begin with what nobody may read any more
	}
	if err != nil {
		return nil, nil, err
	}
	if err := p.enter(ctx, v, payload.Heap(v.resolved, objects)); err != nil {
		return nil, nil, err
	}
	shown, err := p.render(v, objects, false)
	if err != nil {
		p.leave(v)
	}
	return shown, at, err
}

// mayPass says whether waiting can make an error of look go away.
func mayPass(err error) bool {
	var missing *payload.MissingError
	if errors.As(err, &missing) {
		return true
	}
	return errors.Is(err, manager.ErrNotSynced) && ReasonOf(err) == 0
}

// asReason gives an error of look its reason.
func asReason(err error) error {
	var missing *payload.MissingError
	var tooLarge *payload.TooLargeError
	switch {
	case err == nil || ReasonOf(err) != 0:
		return err
	case errors.As(err, &tooLarge):
		return fail(ReasonTooLarge, "%w", err)
	case errors.As(err, &missing):
		return fail(ReasonNotFound, "%w", err)
	case errors.Is(err, manager.ErrNotSynced), errors.Is(err, manager.ErrNotRegistered):
		return fail(ReasonUnavailable, "%w", err)
	default:
		return fail(ReasonInvalid, "%w", err)
	}
}
