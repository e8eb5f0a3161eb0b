package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/payload"
)

// reconcileNext takes one volume off the queue; it returns false once the queue
// has shut down. A failure is tried again, later each time.
func (p *Publisher) reconcileNext(ctx context.Context) bool {
	volumeID, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(volumeID)
	v := p.lookupLive(volumeID)
	if v == nil || ctx.Err() != nil {
		p.queue.Forget(volumeID)
		return true
	}
	updateErr, pruneErr := p.reconcile(ctx, v)
	if ctx.Err() != nil {
		return true // what the end cuts short is no problem of the volume
	}
	p.report(ctx, v, updateErr, errors.Join(p.impaired(v, updateErr == nil), pruneErr))
	if worthRetry(updateErr) || worthRetry(pruneErr) {
		p.queue.AddRateLimited(volumeID)
	} else {
		p.queue.Forget(volumeID)
	}
	return true
}

// reconcile brings a live volume's files to the newest known state of its objects.
// The order of volumes and of events does not matter: it always takes the latest
// state, and doing it twice is doing it once. The two errors are apart, as what can't
// mend the one by another try may mend the other.
func (p *Publisher) reconcile(ctx context.Context, v *published) (updateErr, pruneErr error) {
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	if v.contents.gone {
		return nil, nil
	}
	defer p.leave(v)
	defer func() {
		if cause := recover(); cause != nil {
			updateErr = errors.Join(panicked(ctx, v, cause), p.giveBack(v))
		}
	}()
	updateErr = p.update(ctx, v)
	// Whatever keeps the files from being updated, as a deleted object, must not keep
	// what the pod may not have any more, nor what they showed before.
	var withdrawErr error
	if updateErr != nil && !v.contents.gone && v.contents.showsRefused() {
		withdrawErr = p.withdraw(ctx, v)
	}
	if v.contents.gone {
		return updateErr, nil
	}
	pruneErr = p.prune(ctx, v)
	if pruneErr == nil && !v.contents.gone {
		pruneErr = p.giveBackIdle(v)
	}
	return updateErr, errors.Join(withdrawErr, pruneErr, v.contents.leftover)
}

// panicked makes a panic an error of the volume, so that one can't take the updates of all
// others with it. What the panic carried is not repeated, since it could hold a value; the
// stack holds none. The caller holds the lock of the contents.
func panicked(ctx context.Context, v *published, cause any) error {
	v.contents.proven = false
	logPanic(ctx, v.request.VolumeID, cause)
	return fmt.Errorf("update volume %s: %w", v.request.VolumeID, errPanicked)
}

func logPanic(ctx context.Context, volumeID string, cause any) {
	klog.FromContext(ctx).Error(nil, "Reconcile panicked", "volumeID", volumeID,
		"panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
}

// update writes the files of a volume if they don't show the newest known state of
// its objects. The caller holds the lock of the contents.
func (p *Publisher) update(ctx context.Context, v *published) error {
	p.judge(ctx, v)
	if v.contents.gone {
		return nil
	}
	due := p.isDue(v)
	if due {
		p.opts.Objects.Refresh(v.request.Pod, v.refs)
	}
	if err := p.identifyLater(ctx, v); err != nil {
		return err
	}
	if err := p.reviewLater(ctx, v, due); err != nil {
		return err
	}
	objects, at, err := p.snapshot(v)
	if err != nil {
		return err
	}
	if v.contents.current(at) {
		return nil
	}
	if ref, older := v.contents.older(at); older {
		return fmt.Errorf("%w: the API server's answer for %s is older than what the files show", errStale, ref)
	}
	if !p.claim(ctx, v, objects) {
		return errPutOff
	}
	shown, err := p.render(v, objects, true)
	if err != nil {
		return asReason(err)
	}
	if p.putOff(v, readTime) {
		return errPutOff
	}
	return p.reopen(ctx, v, func(mnt Mount) error {
		if err := p.write(ctx, v, mnt, shown, at); err != nil {
			return err
		}
		// At once where nothing was switched, as after most restarts: the kernel takes
		// its time over giving up a handle.
		p.pruneThrough(v, mnt)
		return nil
	})
}

// prune removes the generation before the current one once its readers have had
// their time. The error is that of opening the volume: what can't be removed is the leftover
// of the contents, and keeps no update from the files.
func (p *Publisher) prune(ctx context.Context, v *published) error {
	if !p.pruneDue(v) {
		return nil
	}
	return p.reopen(ctx, v, func(mnt Mount) error {
		p.pruneThrough(v, mnt)
		return nil
	})
}

// pruneThrough is prune through a handle on the volume's mount.
func (p *Publisher) pruneThrough(v *published, mnt Mount) {
	if !p.pruneDue(v) {
		return
	}
	v.contents.leftover = nil
	if err := v.contents.writer.Prune(mnt.Root()); err != nil {
		v.contents.leftover = fmt.Errorf("prune volume %s: %w", v.request.VolumeID, err)
	}
}

// pruneDue says whether there is an earlier generation that is to go now.
func (p *Publisher) pruneDue(v *published) bool {
	if !v.contents.writer.Stale() {
		v.contents.leftover = nil
		return false
	}
	return !p.putOff(v, pruneTime)
}

// putOff queues the volume for later and returns true if its last switch was less
// than d ago.
func (p *Publisher) putOff(v *published, d time.Duration) bool {
	wait := d - time.Since(v.contents.switched)
	if wait <= 0 {
		return false
	}
	p.queue.AddAfter(v.request.VolumeID, wait)
	return true
}

var (
	// errStale is why a reconcile waits for a newer answer.
	errStale = errors.New("stale answer")
	// errPutOff is why one waits for readers; the volume is queued for then.
	errPutOff = errors.New("put off")
	// errPanicked is why one failed that should have done neither.
	errPanicked = errors.New("the plugin panicked; its log has the stack")
)

// worthRetry says whether a failed reconcile can succeed without a change of an
// object, which would come with an event.
func worthRetry(err error) bool {
	var missing *payload.MissingError
	switch {
	case err == nil,
		errors.As(err, &missing),
		errors.Is(err, manager.ErrNotSynced),
		errors.Is(err, manager.ErrNotRegistered),
		errors.Is(err, errStale),
		errors.Is(err, errPutOff),
		errors.Is(err, errUnreviewed),
		ReasonOf(err) == ReasonInvalid,
		ReasonOf(err) == ReasonTooLarge:
		return false
	}
	return true
}

// report keeps a volume's condition, and logs it when it changes. That the state of
// an object is not known yet, or a write is put off, says nothing about the files.
func (p *Publisher) report(ctx context.Context, v *published, updateErr, otherErr error) {
	if v.saysNothing(updateErr) {
		if otherErr == nil {
			return
		}
		updateErr = nil
	}
	err := errors.Join(updateErr, otherErr)
	if !v.condition.set(err) {
		return
	}
	logger := klog.FromContext(ctx).WithValues("volumeID", v.request.VolumeID, "pod", klog.KRef(v.request.Pod.Namespace, v.request.Pod.Name))
	if err != nil {
		logger.Error(err, "Volume does not show what it should")
		p.warn(v, eventReason(err, v.contents.has), err)
	} else {
		logger.Info("Volume is current again")
	}
}

// saysNothing says whether an error of an update is none of the files'. That a volume has no
// token is nothing new after a restart, until the kubelet should have brought one.
func (v *published) saysNothing(err error) bool {
	unknown := ReasonOf(err) == 0 && errors.Is(err, manager.ErrNotSynced)
	tokenless := errors.Is(err, authz.ErrNoToken) && time.Since(v.since) < tokenTime
	return unknown || tokenless || errors.Is(err, manager.ErrNotRegistered) || errors.Is(err, errPutOff)
}

// resync queues every live volume once per interval, each at a random moment of
// it, until ctx ends. It keeps the objects of live volumes from going idle, and
// mends what an event could not, also where there are no events.
func (p *Publisher) resync(ctx context.Context) {
	ticker := time.NewTicker(p.opts.ResyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, volumeID := range p.resyncVolumes() {
			p.queue.AddAfter(volumeID, rand.N(p.opts.ResyncInterval))
		}
	}
}

// resyncVolumes makes a resync due for each live volume, and returns their ids.
func (p *Publisher) resyncVolumes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, 0, len(p.volumes))
	for id, v := range p.volumes {
		if v.live {
			v.due = true
			ids = append(ids, id)
		}
	}
	return ids
}

// isDue says, once per resync, that a volume's objects are to be refreshed.
func (p *Publisher) isDue(v *published) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := v.due
	v.due = false
	return due
}
