package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/access"
)

// reconcileNext takes one volume off the queue. A failure is tried again, later each time. It returns
// false once the queue has shut down, or another worker has the caller's place.
func (p *Publisher) reconcileNext(ctx context.Context) (more bool) {
	volumeID, shutdown := p.queue.Get()
	if shutdown {
		return false
	}
	defer p.queue.Done(volumeID)
	v := p.lookupActive(volumeID)
	if v == nil || ctx.Err() != nil {
		p.queue.Forget(volumeID)
		return true
	}
	if !p.takeTurn(v) {
		v.yieldPlace()
		return true
	}
	return !v.overseen(v.logged(ctx), func() { p.startWorker(ctx) })
}

// conclude reports a reconcile, and queues the volume again if that is of use.
func (v *published) conclude(ctx context.Context, done reconciled) {
	if ctx.Err() != nil {
		return // what the end cuts short is no problem of the volume
	}
	queue, volumeID := v.p.queue, v.request.VolumeID
	if done.gone {
		queue.Forget(volumeID)
		return
	}
	v.report(ctx, done)
	if outcomeOf(done.update).retry || outcomeOf(done.clean).retry {
		queue.AddRateLimited(volumeID)
	} else {
		queue.Forget(volumeID)
	}
}

// reconciled is the result of a reconcile. Its errors are kept apart, because each may need
// another try or not.
type reconciled struct {
	// update is why the files could not be brought up to date. clean is why something is still
	// there that should be removed.
	update, clean error
	// gone says that the volume was unpublished or dropped.
	gone bool
	// pending is that of the answers.
	pending bool
	// refused is what the pod may not have, stale why what the files show can't be kept
	// current.
	refused, stale error
}

// reconcile brings an active volume's files to the newest known state of its objects.
// The order of volumes and of events does not matter: it always takes the latest
// state, and doing it twice is doing it once.
func (v *published) reconcile(ctx context.Context) (done reconciled) {
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	defer func() { done.gone = v.contents.gone }()
	if v.contents.gone {
		return done
	}
	defer v.releasePlace()
	defer func() {
		if cause := recover(); cause != nil {
			done.update = errors.Join(v.panicked(ctx, cause), v.giveBack())
		}
	}()
	got, err := v.update(ctx)
	if !errors.Is(err, errPutOff) && !outcomeOf(err).retry {
		v.contents.changedAt = time.Time{} // it is shown, or can't be
	}
	done.update, done.pending = err, got.pending
	done.refused = v.registration.Refusal(got.refused)
	if err == nil {
		done.stale = got.stale
	}
	// Whatever keeps the files from being updated, as a deleted object, must not keep
	// what the pod may not have any more, nor what they showed before.
	var withdrawErr error
	if err != nil && !v.contents.gone && v.contents.showsAny(got.refused) {
		withdrawErr = v.withdraw(ctx, got.refused)
	}
	if v.contents.gone {
		return done
	}
	v.releasePlace() // a prune takes no memory
	pruneErr := v.prune(ctx)
	if pruneErr == nil && !v.contents.gone {
		v.remeasure(ctx)
		pruneErr = v.giveBackIdle()
	}
	done.clean = errors.Join(withdrawErr, pruneErr, v.contents.leftover)
	return done
}

// panicked makes a panic an error of the volume, so that one can't take the updates of all
// others with it. The caller holds the lock of the contents.
func (v *published) panicked(ctx context.Context, cause any) error {
	v.contents.proven = false
	logPanic(ctx, cause)
	return fmt.Errorf("update volume %s: %w", v.request.VolumeID, errPanicked)
}

// logPanic logs a panic. What it carried is not repeated, since it could hold a value; the
// stack holds none.
func logPanic(ctx context.Context, cause any) {
	klog.FromContext(ctx).Error(nil, "Reconcile panicked", "panicType", fmt.Sprintf("%T", cause), "stack", string(debug.Stack()))
}

// update writes the files of a volume if they don't show the newest known state of
// its objects. The caller holds the lock of the contents.
func (v *published) update(ctx context.Context) (answers, error) {
	if v.takeChange() {
		v.p.opts.Objects.Refresh(v.request.Pod, v.refs)
		v.registration.Recheck()
	}
	got := v.answers()
	if got.unknown != nil {
		return got, got.unknown
	}
	if v.contents.isCurrent(got) {
		return got, nil
	}
	if ref, older := v.contents.older(got.at); older {
		return got, fmt.Errorf("%w: the API server's answer for %s is older than what the files show", access.ErrStale, ref)
	}
	if !v.tryPlace(ctx, got.objects) {
		return got, errPutOff
	}
	rendering, err := v.render(got, true)
	if err != nil {
		return got, err
	}
	if v.putOff(readTime) {
		return got, errPutOff
	}
	return got, v.reopen(ctx, func(mnt Mount) error {
		before := v.contents.shown
		changed, err := v.write(ctx, mnt, rendering, got)
		if changed {
			v.logUpdate(ctx, before)
		}
		if err != nil {
			return err
		}
		// At once where nothing was switched, as after most restarts: the kernel takes
		// its time over giving up a handle.
		v.pruneThrough(ctx, mnt)
		return nil
	})
}

// takeChange begins an update with the changes that came until now. due says, once per resync, that
// the volume's objects are to be refreshed. The caller holds the lock of the contents.
func (v *published) takeChange() (due bool) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.contents.changedAt.IsZero() {
		v.contents.changedAt = v.queuedAt
	}
	due = v.due
	v.due, v.queuedAt = false, time.Time{}
	return due
}

// prune removes each earlier generation once its readers have had their time. The error is that of opening the volume: what can't be removed is the leftover
// of the contents, and keeps no update from the files.
func (v *published) prune(ctx context.Context) error {
	if !v.pruneDue() {
		return nil
	}
	return v.reopen(ctx, func(mnt Mount) error {
		v.pruneThrough(ctx, mnt)
		return nil
	})
}

// pruneThrough is prune through a handle on the volume's mount.
func (v *published) pruneThrough(ctx context.Context, mnt Mount) {
	if !v.pruneDue() {
		return
	}
	v.contents.leftover = nil
	if err := v.contents.writer.Prune(ctx, mnt.Root(), time.Now().Add(-pruneTime)); err != nil {
		v.contents.leftover = fmt.Errorf("prune volume %s: %w", v.request.VolumeID, err)
	}
	if err := errors.Join(v.measure(mnt), v.noteFiles(ctx, mnt)); err != nil && v.contents.leftover == nil {
		v.contents.leftover = err
	}
	v.pruneDue() // queues the volume for the next one
}

// pruneDue says whether there is an earlier generation that is to go now. If one is to go later, the
// volume is queued for then.
func (v *published) pruneDue() bool {
	if !v.contents.writer.Stale() {
		v.contents.leftover = nil
		return false
	}
	return !v.putOffUntil(v.contents.writer.StaleSince().Add(pruneTime))
}

// putOff queues the volume for later and returns true if its last switch was less
// than d ago.
func (v *published) putOff(d time.Duration) bool { return v.putOffUntil(v.contents.switched.Add(d)) }

func (v *published) putOffUntil(t time.Time) bool {
	wait := time.Until(t)
	if wait <= 0 {
		return false
	}
	v.p.queue.AddAfter(v.request.VolumeID, wait)
	return true
}

// report keeps the volume's condition, and logs it and tells the pod's author when it changes.
func (v *published) report(ctx context.Context, done reconciled) {
	if done.pending && (done.refused != nil || errors.Is(done.update, access.ErrUnreviewed)) {
		return // another reconcile comes with the last answer
	}
	update := outcomeOf(done.update)
	other := errors.Join(done.refused, done.stale, done.clean)
	if update.silent || update.isTokenless(v.since) {
		if other == nil {
			return
		}
		update.err = nil
	}
	o := outcomeOf(errors.Join(update.err, other))
	if v.contents.has(o.missing()) {
		o.event = eventRefDeleted
	}
	if !v.condition.set(o) {
		return
	}
	logger := klog.FromContext(ctx)
	if o.err == nil {
		logger.Info("Volume is current again")
		return
	}
	logger.Error(o.err, "Volume does not show what it should")
	v.p.opts.Events.Warn(v.request.Pod, o.event, o.err.Error())
}

// resync queues every active volume once per interval, each at a random moment of
// it, until ctx ends. It keeps the objects of active volumes from going idle, and
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

// resyncVolumes makes a resync due for each active volume, and returns their ids.
func (p *Publisher) resyncVolumes() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, 0, len(p.volumes))
	for id, v := range p.volumes {
		if v.active {
			v.due = true
			ids = append(ids, id)
		}
	}
	return ids
}
