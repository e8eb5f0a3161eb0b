package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
)

// graceTime is how long the last sync of a publish may take at its deadline.
const graceTime = time.Second

// maxPodVolumes bounds the volumes of a pod, each of which keeps a list of what it shows.
const maxPodVolumes = 128

// Publish makes a volume visible at its target once all its files are written. It waits for required objects and keys that
// don't exist yet, for at most Options.PublishWait. If the volume is mounted, Publish takes the request, with its token,
// or fails with ReasonExists if it differs; nothing else can newly fail. After an error nothing is left of a new volume.
func (p *Publisher) Publish(ctx context.Context, request Request) error {
	v, err := p.want(&request, p.isLost(ctx, &request))
	if v == nil {
		return err
	}
	err = p.await(ctx, v)
	if ReasonOf(err) == ReasonForbidden && errors.Is(err, manager.ErrNotSynced) && !errors.As(err, new(*deniedError)) { // it has not passed
		p.opts.Events.Warn(request.Pod, eventRefForbidden, err.Error())
	}
	return err
}

// isLost says whether a volume that should be mounted is not. Of a call's system calls this alone is not the worker's: it
// touches no file, and a republish must not wait for a write that hangs.
func (p *Publisher) isLost(ctx context.Context, request *Request) bool {
	return p.isMountedAt(request.VolumeID, request.Target) &&
		errors.Is(p.opts.Mounts.Check(ctx, request.VolumeID, request.Target), mount.ErrNotMounted)
}

// isMountedAt says whether a volume is mounted at a target, as far as the table knows.
func (p *Publisher) isMountedAt(volumeID, target string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[volumeID]
	return v != nil && v.mounted && v.target == target
}

// want notes what is wanted, and returns the volume if that is to be waited for.
func (p *Publisher) want(request *Request, lost bool) (*vol, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.volumes[request.VolumeID]
	switch {
	case p.volumes[leftoverKey(request.VolumeID, request.Target)] != nil, v != nil && (v.gone || v.waits):
		return nil, fail(ReasonBusy, "volume %s: %w", request.VolumeID, errBusy)
	case v != nil && v.target != request.Target && !v.mounted:
		return nil, fail(ReasonBusy, "volume %s: %w", request.VolumeID, errBusy) // it is just going
	case v != nil && v.target != request.Target:
		return nil, fail(ReasonExists, "volume %s is published already, with another target path", request.VolumeID)
	case v != nil && v.mounted && v.want != nil && !v.want.Derived: // else the kubelet knows better
		if what := v.want.differs(request); what != "" {
			return nil, fail(ReasonExists, "volume %s is published already, with another %s", request.VolumeID, what)
		}
		request = v.want.renewed(request)
	case v != nil && v.mounted && !lost && (request.PodErr != nil || request.TokenErr != nil && p.opts.Identity != nil):
		return nil, nil //nolint:nilnil // the pod's spec says what is wanted
	case v == nil:
		if err := request.validate(&p.opts); err != nil {
			return nil, err
		}
		if v = p.add(request.VolumeID, request.VolumeID, request.Target); len(v.worker.all) > maxPodVolumes {
			n := len(v.worker.all)
			p.leave(v)
			return nil, fail(ReasonInvalid, "the pod has %d volumes of this driver, more than %d: show several objects in one volume", n, maxPodVolumes)
		}
	}
	request.came = time.Now()
	v.want = request
	p.wake(v, request.came)
	if v.mounted && !lost {
		return nil, nil //nolint:nilnil // there is nothing to wait for
	}
	v.lost, v.waits, v.err = v.mounted, true, nil
	return v, nil
}

// await returns when a volume is mounted, or won't be: by a failure that no answer ends, at the deadline, or at the end of
// ctx. At the deadline, and when the plugin stops, the worker has one more look, so the answer is that of this moment.
func (p *Publisher) await(ctx context.Context, v *vol) error {
	deadline := time.NewTimer(p.opts.PublishWait)
	defer deadline.Stop()
	stopping := p.stopping
	var why error
	last := 0
	for {
		changed, done, err := p.settled(v, last, why)
		if done {
			return err
		}
		select {
		case <-changed:
		case <-deadline.C:
			if last != 0 {
				return p.giveUp(v, why)
			}
			last = p.lastSync(v)
			deadline.Reset(graceTime)
		case <-ctx.Done():
			return p.giveUp(v, ctx.Err())
		case <-stopping:
			stopping, why, last = nil, errStopping, p.lastSync(v)
			deadline.Reset(graceTime)
		}
	}
}

// lastSync has a volume synced once more, and returns the number of that sync.
func (p *Publisher) lastSync(v *vol) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake(v, time.Now())
	return v.syncs + 1
}

// settled says whether a publish is done. last is the number of the sync that has the last word, 0 for none yet, and why
// is why it is the last one.
func (p *Publisher) settled(v *vol, last int, why error) (changed <-chan struct{}, done bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case v.gone:
		v.waits = false
		return nil, true, fail(ReasonBusy, "volume %s: %w", v.id, errUnpublished)
	case v.mounted && !v.lost:
		v.waits = false
		return nil, true, nil
	case v.err != nil && !outcomeOf(v.err).waits && !v.attaching, last != 0 && v.syncs >= last && v.worker.current != v && !outcomeOf(v.err).isPending():
		return nil, true, p.giveUpLocked(v, why)
	}
	return v.changed, false, nil
}

func (p *Publisher) giveUp(v *vol, why error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v.mounted && !v.lost && !v.gone {
		v.waits = false
		return nil // it has come meanwhile
	}
	return p.giveUpLocked(v, why)
}

// giveUpLocked ends a publish: what is not mounted then goes. What is being attached may be mounted in a moment, so the
// answer must not be final. The caller holds mu.
func (p *Publisher) giveUpLocked(v *vol, why error) error {
	v.waits = false
	p.wake(v, time.Now())
	switch {
	case v.attaching:
		return fail(ReasonUnavailable, "volume %s is just becoming visible", v.id)
	case why != nil && v.err != nil:
		return fail(ReasonUnavailable, "volume %s: %w: %w", v.id, why, v.err)
	case why != nil:
		return fail(ReasonUnavailable, "volume %s: %w", v.id, why)
	case v.err != nil:
		return outcomeOf(v.err).failure()
	}
	return fail(ReasonUnavailable, "volume %s: %w", v.id, errPodBusy)
}

// Unpublish removes a volume's mount and target directory, and releases its objects. It needs no API server and no
// knowledge of the volume; a volume that isn't there is success. A publish that waits is ended, and a second unpublish joins
// the first. What it asks for happens also after it gave up.
func (p *Publisher) Unpublish(ctx context.Context, volumeID, target string) error {
	if err := checkForm(p.opts.KubeletDir, target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
	}
	v, tries := p.unwant(volumeID, target)
	for {
		changed, done, err := v.unpublished(tries)
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
func (p *Publisher) unwant(volumeID, target string) (v *vol, tries int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := volumeID
	if v := p.volumes[key]; v != nil && v.target != target {
		key = leftoverKey(volumeID, target) // the volume at the other target stays; here there can only be leftovers
	}
	if v = p.volumes[key]; v == nil {
		v = p.add(key, volumeID, target)
	}
	if !v.gone {
		v.gone = true
		if v.worker.current == v {
			v.worker.cancel(errUnpublished) // its own: a sibling's may be half-way through files that are rewritten in place
		}
		v.notify()
	}
	p.wake(v, time.Now())
	return v, v.unmounts
}

// unpublished says whether an unpublish is done.
func (v *vol) unpublished(tries int) (changed <-chan struct{}, done bool, err error) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	switch {
	case v.unmounts > tries && errors.Is(v.unmountErr, mount.ErrOutside):
		return nil, true, fail(ReasonInvalid, "target_path: %w", v.unmountErr)
	case v.unmounts > tries && v.unmountErr != nil:
		return nil, true, fmt.Errorf("unmount volume %s from %s: %w", v.id, v.target, v.unmountErr)
	}
	return v.changed, v.removed, nil
}
