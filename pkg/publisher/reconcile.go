package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/writer"
)

// reconcileTime is how long a reconcile may write.
const reconcileTime = time.Minute

// errHangs is why a reconcile ended after reconcileTime.
var errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")

// conclude reports a reconcile, and has the volume reconciled again: after a failure, later each time, and
// otherwise at its resync. The caller holds the lock of the pod.
func (v *published) conclude(ctx context.Context, done reconciled) {
	if ctx.Err() != nil || done.gone {
		return // what the end cuts short is no problem of the volume
	}
	v.report(ctx, done)
	if outcomeOf(done.update).retry || outcomeOf(done.clean).retry {
		v.p.requeue(v, time.Now().Add(v.p.retries.When(v)))
		return
	}
	v.p.retries.Forget(v)
	v.p.requeue(v, v.nextResync())
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
// state, and doing it twice is doing it once. It ends after reconcileTime and the system call
// that is under way then. The caller holds the lock of the pod.
func (v *published) reconcile(ctx context.Context) (done reconciled) {
	defer func() { done.gone = v.is(gone) }()
	if v.is(gone) {
		return done
	}
	ctx, cancel := context.WithTimeout(ctx, reconcileTime)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			done.update = v.panicked(ctx, cause)
		}
		if done.update != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			done.update = fmt.Errorf("%w: %w", errHangs, done.update)
		}
	}()
	got, err := v.update(ctx)
	if !errors.Is(err, errPutOff) && !outcomeOf(err).retry {
		v.contents.changedAt = time.Time{} // it is shown, or can't be
	}
	done.update, done.pending = err, got.pending
	done.refused = v.refusal(got.refused)
	if err == nil {
		done.stale = got.stale
	}
	// Whatever keeps the files from being updated, as a deleted object, must not keep
	// what the pod may not have any more, nor what they showed before.
	var withdrawErr error
	if err != nil && !v.is(gone) && v.contents.showsAny(got.refused) {
		withdrawErr = v.withdraw(ctx, got.refused)
	}
	if v.is(gone) {
		return done
	}
	pruneErr := v.prune(ctx)
	done.clean = errors.Join(withdrawErr, pruneErr, v.contents.leftover)
	return done
}

// panicked makes a panic an error of the volume, so that one can't take the updates of all
// others with it. The caller holds the lock of the pod.
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
// its objects. The caller holds the lock of the pod.
func (v *published) update(ctx context.Context) (answers, error) {
	if v.takeChange() {
		v.p.opts.Objects.Refresh(v.request.Pod, v.refs)
	}
	got := v.answers()
	if got.unknown != nil {
		return got, got.unknown
	}
	if v.contents.isCurrent(got) {
		return got, nil
	}
	if ref, older := v.contents.older(got.at); older {
		return got, fmt.Errorf("%w: the API server's answer for %s is older than what the files show", errStale, ref)
	}
	next, err := v.prepare(ctx, got, true)
	if err != nil {
		return got, err
	}
	if v.putOff(readTime) {
		return got, errPutOff
	}
	return got, v.reopen(ctx, func(mnt Mount) error {
		before := v.contents.shown
		changed, err := v.write(ctx, mnt, next, true)
		if changed {
			v.logUpdate(ctx, before)
		}
		if err != nil {
			return err
		}
		v.pruneThrough(mnt)
		return nil
	})
}

// takeChange begins an update with the changes that came until now. due says, once per resync, that
// the volume's objects are to be refreshed. The caller holds the lock of the pod.
func (v *published) takeChange() (due bool) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.contents.changedAt.IsZero() {
		v.contents.changedAt = v.queuedAt
	}
	v.queuedAt = time.Time{}
	now := time.Now()
	if due = !now.Before(v.resyncAt); due {
		v.resyncAt = now.Add(v.p.opts.ResyncInterval)
	}
	return due
}

func (v *published) nextResync() time.Time {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	return v.resyncAt
}

// prune removes each earlier generation once its readers have had their time. The error is that of opening the volume:
// what can't be removed is the leftover of the contents, and keeps no update from the files.
func (v *published) prune(ctx context.Context) error {
	if !v.pruneDue() {
		return nil
	}
	return v.reopen(ctx, func(mnt Mount) error { v.pruneThrough(mnt); return nil })
}

// pruneThrough is prune through a handle on the volume's mount.
func (v *published) pruneThrough(mnt Mount) {
	for v.pruneDue() { // the next one may be due by now
		if v.pruneBefore(mnt, time.Now().Add(-pruneTime)); v.contents.leftover != nil {
			return
		}
	}
}

// pruneNow removes all earlier generations.
func (v *published) pruneNow(mnt Mount) { v.pruneBefore(mnt, time.Now()) }

func (v *published) pruneBefore(mnt Mount, before time.Time) {
	next, err := writer.Prune(mnt.Root(), before)
	v.contents.pruneAt, v.contents.leftover = time.Time{}, nil
	if !next.IsZero() { // of a volume that changes often, several go at once, and not with its next change
		v.contents.pruneAt = time.Now().Add(pruneTime + rand.N(pruneTime))
	}
	if err = errors.Join(err, v.measure(mnt)); err != nil {
		v.contents.pruneAt = time.Now() // it is tried again
		v.contents.leftover = fmt.Errorf("prune volume %s: %w", v.request.VolumeID, err)
	}
}

// pruneDue says whether there is an earlier generation that is to go now. If one is to go later, the volume is queued
// for then.
func (v *published) pruneDue() bool {
	at := v.contents.pruneAt
	return !at.IsZero() && !v.putOffUntil(at)
}

// putOff queues the volume for later and returns true if its last switch was less
// than d ago.
func (v *published) putOff(d time.Duration) bool { return v.putOffUntil(v.contents.switched.Add(d)) }

func (v *published) putOffUntil(t time.Time) bool {
	if !time.Now().Before(t) {
		return false
	}
	v.p.requeue(v, t)
	return true
}

// report keeps the volume's condition, and logs it and tells the pod's author when it changes.
func (v *published) report(ctx context.Context, done reconciled) {
	if done.pending && (done.refused != nil || errors.Is(done.update, errUnreviewed)) {
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
