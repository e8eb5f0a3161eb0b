package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
)

// graceTime limits the last reconcile of a publish after its deadline.
const graceTime = time.Second

// Publish makes a volume visible at its target when all its files are written. It waits for required objects and keys that don't exist yet,
// for at most Options.PublishWait. If the volume is already mounted, Publish accepts the request with its token, or fails with ReasonExists
// if the request differs. No other new failure is possible then. After an error nothing remains of a new volume.
func (p *Publisher) Publish(ctx context.Context, request binding.Request) error {
	e, err := p.want(&request, p.isLost(ctx, &request))
	if e == nil {
		return err
	}
	err = p.await(ctx, e)
	var found failure.List
	if failure.ReasonOf(err) == failure.ReasonForbidden && errors.As(err, &found) && found.Worst().Kind == failure.Denied { // it has not passed
		p.opts.Events.Warn(request.Pod, failure.RefForbidden, err.Error())
	}
	return err
}

// isLost reports whether a volume that should be mounted is not. This is the only system call that a CSI call makes itself, and not the
// worker: it touches no file, and a republish must not wait for a write that hangs.
func (p *Publisher) isLost(ctx context.Context, request *binding.Request) bool {
	return p.table.isMountedAt(request.VolumeID, request.Target) &&
		errors.Is(p.opts.Mounts.Check(ctx, request.VolumeID, request.Target), mount.ErrNotMounted)
}

// isMountedAt reports whether a volume is mounted at a target, according to the table.
func (t *table) isMountedAt(volumeID, target string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[volumeID]
	return e != nil && e.phase == mounted && e.Target == target
}

// want stores a request. It returns the entry if the caller must wait for the volume, or nil.
func (p *Publisher) want(request *binding.Request, lost bool) (*entry, error) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[request.VolumeID]
	switch {
	case t.entries[leftoverKey(request.VolumeID, request.Target)] != nil, e != nil && e.isBusyFor(request):
		return nil, failure.New(failure.ReasonBusy, "volume %s: %w", request.VolumeID, errBusy)
	case e != nil && e.Target != request.Target:
		return nil, failure.New(failure.ReasonExists, "volume %s is published already, with another target path", request.VolumeID)
	case e != nil && e.isAsked():
		if what := e.wanted.request.Differs(request); what != "" {
			return nil, failure.New(failure.ReasonExists, "volume %s is published already, with another %s", request.VolumeID, what)
		}
		request = e.wanted.request.Renewed(request)
	case e != nil && e.phase == mounted && !lost && p.isUnclear(request):
		return nil, nil //nolint:nilnil // the pod's spec says what is wanted
	case e == nil:
		if err := request.Validate(&p.opts.Options); err != nil {
			return nil, err
		}
		if e = t.add(request.VolumeID, request.VolumeID, request.Target, false); len(e.worker.all) > volume.MaxPodVolumes {
			n := len(e.worker.all)
			e.remove()
			return nil, failure.New(failure.ReasonInvalid, "the pod has %d volumes of this driver, more than %d: show several objects in one volume", n, volume.MaxPodVolumes)
		}
	}
	request.Came = time.Now()
	e.wanted.request = request
	e.wakeLocked(request.Came)
	if e.phase == mounted && !lost {
		return nil, nil //nolint:nilnil // there is nothing to wait for
	}
	e.wanted.lost, e.wanted.waits, e.failures = e.phase == mounted, true, nil
	return e, nil
}

// isBusyFor reports whether another call must end before the request can be accepted. The caller holds mu.
func (e *entry) isBusyFor(request *binding.Request) bool {
	isLeaving := e.Target != request.Target && e.phase != mounted
	return e.wanted.going || e.wanted.waits || isLeaving
}

// isAsked reports whether the kubelet itself has sent a request for a mounted volume. The caller holds mu.
func (e *entry) isAsked() bool {
	return e.phase == mounted && e.wanted.request != nil && !e.wanted.request.Derived
}

// isUnclear reports whether a request lacks something that a new volume needs.
func (p *Publisher) isUnclear(request *binding.Request) bool {
	return request.PodErr != nil || request.TokenErr != nil && p.opts.Identity != nil
}

// await waits until a volume is mounted, or cannot be mounted: after a final failure, at the deadline, or at the end of ctx. At the
// deadline, and when the plugin stops, the volume is reconciled once more, so that the answer is up to date.
func (p *Publisher) await(ctx context.Context, e *entry) error {
	deadline := time.NewTimer(p.opts.PublishWait)
	defer deadline.Stop()
	stopping := p.stopping
	var why error
	last := 0
	for {
		changed, done, err := e.published(last, why)
		if done {
			return err
		}
		select {
		case <-changed:
		case <-deadline.C:
			if last != 0 {
				return e.giveUp(why)
			}
			last = e.lastRound()
			deadline.Reset(graceTime)
		case <-ctx.Done():
			return e.giveUp(ctx.Err())
		case <-stopping:
			stopping, why, last = nil, errStopping, e.lastRound()
			deadline.Reset(graceTime)
		}
	}
}

// lastRound wakes the worker for one more reconcile and returns the number of that round.
func (e *entry) lastRound() int {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.wakeLocked(time.Now())
	return e.rounds + 1
}

// published reports whether a publish is done. last is the number of the round that decides, or 0 if that is not set. why says why it is
// the last one.
func (e *entry) published(last int, why error) (changed <-chan struct{}, done bool, err error) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	switch {
	case e.wanted.going:
		e.wanted.waits = false
		return nil, true, failure.New(failure.ReasonBusy, "volume %s: %w", e.ID, errUnpublished)
	case e.phase == mounted && !e.wanted.lost:
		e.wanted.waits = false
		return nil, true, nil
	case e.hasFailed(), last != 0 && e.hasSaid(last):
		return nil, true, e.giveUpLocked(why)
	}
	return e.nextChange(), false, nil
}

// hasFailed reports whether a publish has failed for good. The caller holds mu.
func (e *entry) hasFailed() bool {
	return e.failures.IsFinal() && e.phase != attaching
}

// hasSaid reports whether a round has ended with an answer. The caller holds mu.
func (e *entry) hasSaid(round int) bool {
	return e.rounds >= round && e.worker.current != e && !e.failures.IsUnanswered()
}

func (e *entry) giveUp(why error) error {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if e.phase == mounted && !e.wanted.lost && !e.wanted.going {
		e.wanted.waits = false
		return nil // it was mounted meanwhile
	}
	return e.giveUpLocked(why)
}

// giveUpLocked ends a publish. A volume that is not mounted is then forgotten. While the volume is being attached it may be mounted in a
// moment, so the error must not be final. The caller holds mu.
func (e *entry) giveUpLocked(why error) error {
	e.wanted.waits = false
	e.wakeLocked(time.Now())
	switch {
	case e.phase == attaching:
		return failure.New(failure.ReasonUnavailable, "volume %s is just becoming visible", e.ID)
	case why != nil && len(e.failures) > 0:
		return failure.New(failure.ReasonUnavailable, "volume %s: %w: %w", e.ID, why, e.failures)
	case why != nil:
		return failure.New(failure.ReasonUnavailable, "volume %s: %w", e.ID, why)
	case len(e.failures) > 0:
		return e.failures.Public()
	}
	return failure.New(failure.ReasonUnavailable, "volume %s: %w", e.ID, errPodBusy)
}

// Unpublish unmounts a volume, removes its target directory, and releases its objects. It needs neither the API server nor any knowledge of
// the volume, and it succeeds if the volume does not exist. It ends a publish that waits. A second unpublish joins the first. If ctx ends,
// Unpublish returns ReasonUnavailable, and the work continues.
func (p *Publisher) Unpublish(ctx context.Context, volumeID, target string) error {
	if _, _, err := volume.ParseTarget(p.opts.KubeletDir, target); err != nil {
		return failure.New(failure.ReasonInvalid, "target_path: %w", err)
	}
	e, tries := p.table.unwant(volumeID, target)
	for {
		changed, done, err := e.unpublished(tries)
		if done {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return failure.New(failure.ReasonUnavailable, "volume %s: %w: %w", volumeID, errPodBusy, ctx.Err())
		case <-p.ended:
			return failure.New(failure.ReasonUnavailable, "volume %s: %w", volumeID, errStopping)
		}
	}
}

// unwant marks a volume for unmounting. It returns the entry and the number of tries to unmount it so far.
func (t *table) unwant(volumeID, target string) (e *entry, tries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := volumeID
	if e := t.entries[key]; e != nil && e.Target != target {
		key = leftoverKey(volumeID, target) // the volume at the other target stays; at this target there can only be leftovers
	}
	if e = t.entries[key]; e == nil {
		e = t.add(key, volumeID, target, false)
	}
	if !e.wanted.going {
		e.wanted.going = true
		if e.worker.current == e {
			e.worker.cancel(errUnpublished) // cancel only this volume's reconcile: another one may be in the middle of a rewrite in place
		}
		e.notify()
	}
	e.wakeLocked(time.Now())
	return e, e.unmounts
}

// unpublished reports whether an unpublish is done.
func (e *entry) unpublished(tries int) (changed <-chan struct{}, done bool, err error) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	switch {
	case e.unmounts > tries && errors.Is(e.unmountErr, mount.ErrOutside):
		return nil, true, failure.New(failure.ReasonInvalid, "target_path: %w", e.unmountErr)
	case e.unmounts > tries && e.unmountErr != nil:
		return nil, true, fmt.Errorf("unmount volume %s from %s: %w", e.ID, e.Target, e.unmountErr)
	}
	if e.phase == removed {
		return nil, true, nil
	}
	return e.nextChange(), false, nil
}
