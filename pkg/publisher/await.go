package publisher

import (
	"context"
	"errors"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// refreshBackoff is how often a publish that waits asks again for what it lacks, where
// nothing tells of changes: after a second, and up to ten.
func refreshBackoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 1.5, Jitter: 0.2, Cap: 10 * time.Second, Steps: math.MaxInt}
}

// await returns what a new volume is to show. The caller then holds the lock of the pod. await waits while
// required objects or keys are missing, or while their state is not known. Each change of one of them
// wakes it. It also asks again from time to time, as not every change detection tells of changes.
func (v *published) await(ctx context.Context) (*prepared, error) {
	ctx, cancel := v.p.waiting(ctx, v.deadline)
	defer cancel()
	backoff := refreshBackoff()
	refresh := time.NewTimer(backoff.Step())
	defer refresh.Stop()
	for {
		first, err := v.look(ctx)
		if err == nil {
			v.condition.set(outcome{})
			return first, nil
		}
		o := outcomeOf(err)
		if !o.waits {
			return nil, o.failure()
		}
		v.announce(o)
		select {
		case <-v.wake:
		case <-refresh.C:
			v.p.opts.Objects.Refresh(v.request.Pod, v.lacking(err))
			refresh.Reset(backoff.Step())
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errStopping) {
				return nil, fail(ReasonUnavailable, "%w: %w", errStopping, err)
			}
			// Why the state of an object is not known may have become known since.
			first, err := v.look(ctx)
			if errors.Is(err, access.ErrPending) { // an answer was just too old
				err = o.err
			}
			if o = outcomeOf(err); v.p.opts.NodeRights && apierrors.IsForbidden(err) {
				o.reason = ReasonForbidden // it has not passed; else it is not the object that is refused
			}
			return first, o.failure()
		}
	}
}

// lacking returns the objects that a publish waits for, which failed with err.
func (v *published) lacking(err error) []volume.Ref {
	var refs []volume.Ref
	var missing *payload.MissingError
	if errors.As(err, &missing) {
		for _, m := range missing.Missing {
			refs = append(refs, m.Ref)
		}
		return refs
	}
	for _, ref := range v.registered {
		if _, err := v.p.opts.Objects.GetObject(v.request.Pod, ref); errors.Is(err, manager.ErrNotSynced) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// announce tells the pod's author what its publish waits for, when that changes. That
// the state of an object is not known yet is not told: as a rule that lasts a moment.
func (v *published) announce(o outcome) {
	var missing *payload.MissingError
	if errors.As(o.err, &missing) && v.condition.set(o) && v.p.isNews(v.request.VolumeID, o.err.Error()) {
		v.p.opts.Events.Warn(v.request.Pod, o.event, o.err.Error())
	}
}

// look prepares what is known now of a new volume's objects. If it succeeds, the caller holds the lock of
// the pod.
func (v *published) look(ctx context.Context) (*prepared, error) {
	if _, err := v.firstAnswers(); err != nil {
		return nil, err // which needs no lock
	}
	if err := v.worker.lock(ctx); err != nil {
		return nil, fail(ReasonUnavailable, "%w: %w", errPodBusy, err)
	}
	ready := false
	defer func() { // also when something panics
		if !ready {
			v.worker.unlock()
		}
	}()
	got, err := v.firstAnswers()
	if err != nil {
		return nil, err
	}
	first, err := v.prepare(ctx, got, false)
	ready = err == nil
	return first, err
}

// firstAnswers returns the answers that a new volume may begin with.
func (v *published) firstAnswers() (answers, error) {
	got := v.answers()
	var denied *deniedError
	var full *manager.FullError
	switch {
	case len(got.refused) > 0: // since the pod was admitted
		return got, v.refusal(got.refused)
	case errors.As(got.unknown, &full):
		return got, fail(ReasonCacheFull, "%w", full) // what else is unknown changes nothing
	case got.unknown != nil:
		return got, got.unknown
	case errors.As(got.stale, &denied):
		// A new volume must not begin with what nobody may read any more.
		return got, got.stale
	}
	return got, nil
}
