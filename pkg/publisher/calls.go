package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
)

// graceTime is how long the last reconcile of a publish may take at its deadline.
const graceTime = time.Second

// maxPodVolumes bounds the volumes of a pod, each of which keeps a list of what it shows.
const maxPodVolumes = 128

// Publish makes a volume visible at its target once all its files are written. It waits for required objects and keys that
// don't exist yet, for at most Options.PublishWait. If the volume is mounted, Publish takes the request, with its token,
// or fails with ReasonExists if it differs; nothing else can newly fail. After an error nothing is left of a new volume.
func (p *Publisher) Publish(ctx context.Context, request Request) error {
	e, err := p.want(&request, p.isLost(ctx, &request))
	if e == nil {
		return err
	}
	err = p.await(ctx, e)
	var f *failure
	if ReasonOf(err) == ReasonForbidden && errors.As(err, &f) && f.silent && errors.Is(err, manager.ErrNotSynced) { // it has not passed
		p.opts.Events.Warn(request.Pod, eventRefForbidden, err.Error())
	}
	return err
}

// isLost says whether a volume that should be mounted is not. Of a call's system calls this alone is not the worker's: it
// touches no file, and a republish must not wait for a write that hangs.
func (p *Publisher) isLost(ctx context.Context, request *Request) bool {
	return p.table.isMountedAt(request.VolumeID, request.Target) &&
		errors.Is(p.opts.Mounts.Check(ctx, request.VolumeID, request.Target), mount.ErrNotMounted)
}

// isMountedAt says whether a volume is mounted at a target, as far as the table knows.
func (t *table) isMountedAt(volumeID, target string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[volumeID]
	return e != nil && e.phase == mounted && e.target == target
}

// want notes what is wanted, and returns the volume if that is to be waited for.
func (p *Publisher) want(request *Request, lost bool) (*entry, error) {
	t := p.table
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[request.VolumeID]
	switch {
	case t.entries[leftoverKey(request.VolumeID, request.Target)] != nil, e != nil && e.isBusyFor(request):
		return nil, fail(ReasonBusy, "volume %s: %w", request.VolumeID, errBusy)
	case e != nil && e.target != request.Target:
		return nil, fail(ReasonExists, "volume %s is published already, with another target path", request.VolumeID)
	case e != nil && e.isAsked():
		if what := e.wanted.request.differs(request); what != "" {
			return nil, fail(ReasonExists, "volume %s is published already, with another %s", request.VolumeID, what)
		}
		request = e.wanted.request.renewed(request)
	case e != nil && e.phase == mounted && !lost && p.isUnclear(request):
		return nil, nil //nolint:nilnil // the pod's spec says what is wanted
	case e == nil:
		if err := request.validate(&p.opts); err != nil {
			return nil, err
		}
		if e = t.add(request.VolumeID, request.VolumeID, request.Target); len(e.worker.all) > maxPodVolumes {
			n := len(e.worker.all)
			e.remove()
			return nil, fail(ReasonInvalid, "the pod has %d volumes of this driver, more than %d: show several objects in one volume", n, maxPodVolumes)
		}
	}
	request.came = time.Now()
	e.wanted.request = request
	e.wakeLocked(request.came)
	if e.phase == mounted && !lost {
		return nil, nil //nolint:nilnil // there is nothing to wait for
	}
	e.wanted.lost, e.wanted.waits, e.failure = e.phase == mounted, true, nil
	return e, nil
}

// isBusyFor says whether another call has to end before a request is taken. The caller holds mu.
func (e *entry) isBusyFor(request *Request) bool {
	isLeaving := e.target != request.Target && e.phase != mounted
	return e.wanted.going || e.wanted.waits || isLeaving
}

// isAsked says whether the kubelet itself has said what it wants of a mounted volume. The caller holds mu.
func (e *entry) isAsked() bool {
	return e.phase == mounted && e.wanted.request != nil && !e.wanted.request.Derived
}

// isUnclear says whether a request lacks what a new volume would need.
func (p *Publisher) isUnclear(request *Request) bool {
	return request.PodErr != nil || request.TokenErr != nil && p.opts.Identity != nil
}

// await returns when a volume is mounted, or won't be: by a failure that no answer ends, at the deadline, or at the end of
// ctx. At the deadline, and when the plugin stops, the worker has one more look, so the answer is that of this moment.
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

// lastRound has a volume reconciled once more, and returns the number of that round.
func (e *entry) lastRound() int {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	e.wakeLocked(time.Now())
	return e.rounds + 1
}

// published says whether a publish is done. last is the number of the round that has the last word, 0 for none yet, and why
// is why it is the last one.
func (e *entry) published(last int, why error) (changed <-chan struct{}, done bool, err error) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	switch {
	case e.wanted.going:
		e.wanted.waits = false
		return nil, true, fail(ReasonBusy, "volume %s: %w", e.id, errUnpublished)
	case e.phase == mounted && !e.wanted.lost:
		e.wanted.waits = false
		return nil, true, nil
	case e.hasFailed(), last != 0 && e.hasSaid(last):
		return nil, true, e.giveUpLocked(why)
	}
	return e.changed, false, nil
}

// hasFailed says whether a publish has failed for good. The caller holds mu.
func (e *entry) hasFailed() bool {
	return e.failure != nil && !e.failure.waits && e.phase != attaching
}

// hasSaid says whether a round has ended, and knows. The caller holds mu.
func (e *entry) hasSaid(round int) bool {
	return e.rounds >= round && e.worker.current != e && (e.failure == nil || !e.failure.unanswered)
}

func (e *entry) giveUp(why error) error {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	if e.phase == mounted && !e.wanted.lost && !e.wanted.going {
		e.wanted.waits = false
		return nil // it has come meanwhile
	}
	return e.giveUpLocked(why)
}

// giveUpLocked ends a publish: what is not mounted then goes. What is being attached may be mounted in a moment, so the
// answer must not be final. The caller holds mu.
func (e *entry) giveUpLocked(why error) error {
	e.wanted.waits = false
	e.wakeLocked(time.Now())
	switch {
	case e.phase == attaching:
		return fail(ReasonUnavailable, "volume %s is just becoming visible", e.id)
	case why != nil && e.failure != nil:
		return fail(ReasonUnavailable, "volume %s: %w: %w", e.id, why, e.failure.err)
	case why != nil:
		return fail(ReasonUnavailable, "volume %s: %w", e.id, why)
	case e.failure != nil:
		return e.failure.public()
	}
	return fail(ReasonUnavailable, "volume %s: %w", e.id, errPodBusy)
}

// Unpublish removes a volume's mount and target directory, and releases its objects. It needs no API server and no
// knowledge of the volume; a volume that isn't there is success. A publish that waits is ended, and a second unpublish joins
// the first. What it asks for happens also after it gave up.
func (p *Publisher) Unpublish(ctx context.Context, volumeID, target string) error {
	if err := checkForm(p.opts.KubeletDir, target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
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
			return fail(ReasonUnavailable, "volume %s: %w: %w", volumeID, errPodBusy, ctx.Err())
		case <-p.ended:
			return fail(ReasonUnavailable, "volume %s: %w", volumeID, errStopping)
		}
	}
}

// unwant notes that a volume is to go, and returns it with the number of tries to unmount it until now.
func (t *table) unwant(volumeID, target string) (e *entry, tries int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := volumeID
	if e := t.entries[key]; e != nil && e.target != target {
		key = leftoverKey(volumeID, target) // the volume at the other target stays; here there can only be leftovers
	}
	if e = t.entries[key]; e == nil {
		e = t.add(key, volumeID, target)
	}
	if !e.wanted.going {
		e.wanted.going = true
		if e.worker.current == e {
			e.worker.cancel(errUnpublished) // its own: a sibling's may be half-way through files that are rewritten in place
		}
		e.notify()
	}
	e.wakeLocked(time.Now())
	return e, e.unmounts.tries
}

// unpublished says whether an unpublish is done.
func (e *entry) unpublished(tries int) (changed <-chan struct{}, done bool, err error) {
	e.table.mu.Lock()
	defer e.table.mu.Unlock()
	switch {
	case e.unmounts.tries > tries && errors.Is(e.unmounts.last, mount.ErrOutside):
		return nil, true, fail(ReasonInvalid, "target_path: %w", e.unmounts.last)
	case e.unmounts.tries > tries && e.unmounts.last != nil:
		return nil, true, fmt.Errorf("unmount volume %s from %s: %w", e.id, e.target, e.unmounts.last)
	}
	return e.changed, e.phase == removed, nil
}
