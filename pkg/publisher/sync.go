package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/writer"
)

const (
	// syncTime is how long a sync may write.
	syncTime = time.Minute
	// A publish that waits has its objects asked for again so often, as not every change detection tells of changes.
	askMin = time.Second
	askMax = 10 * time.Second
)

// snapshot is what a sync takes from the calls at its begin. What comes later makes the volume due again.
type snapshot struct {
	want        *Request
	gone, waits bool
}

// synced is the result of a sync: what it was for, when the volume is due again, and why it does not show what it should.
type synced struct {
	want  *Request
	again time.Time
	err   error
	// pending says that answers about rights were not all there yet: another sync comes with the last one.
	pending bool
}

func (v *vol) begin() snapshot {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.lost {
		v.lost, v.mounted, v.seen = false, false, false
	}
	if v.contents.changedAt.IsZero() {
		v.contents.changedAt = v.changedAt
	}
	v.changedAt = time.Time{}
	if v.want != nil && v.want.PodErr == nil {
		v.told.pod = v.want.Pod
	}
	return snapshot{v.want, v.gone, v.waits}
}

// sync brings a volume to what is wanted of it. A publish, a change, a resync, a restart and a withdrawal are this function.
// It takes the latest state, so the order of events does not matter, and doing it twice is doing it once.
func (v *vol) sync(ctx context.Context) (done synced) {
	now := v.begin()
	done.want = now.want
	defer func() {
		if errors.Is(done.err, errLost) { // what is there then is looked at now
			done.again = time.Now()
		}
	}()
	if now.gone {
		v.end(ctx)
		return synced{want: now.want, again: time.Now(), err: pending(errUnpublished)}
	}
	done.err = v.look(ctx)
	if !v.mounted && !now.waits {
		v.remove(ctx, false)
		return synced{want: now.want, err: pending(errNobody)}
	}
	if done.err != nil {
		return done
	}
	if done.want, done.err = v.derive(now.want); done.err != nil {
		return done
	}
	if done.err = v.know(ctx, done.want, now.waits); done.err != nil {
		return done
	}
	if v.mounted && v.spec.Pinned() {
		v.letGo()
		done.again, done.err = v.tidy(ctx)
		return done
	}
	if !v.mounted {
		if done.err = v.admit(done.want.came); done.err != nil {
			return done
		}
	}
	got := v.answers()
	done.pending = got.isPending()
	v.noteWithdrawn(got.refused)
	switch next := v.contents.switched.Add(readTime); {
	case v.mounted && !v.isCurrent(got) && time.Now().Before(next):
		done.again, done.err = next, pending(errPutOff)
	default:
		done.err = v.show(ctx, got)
		if done.err != nil && v.mounted && v.showsAny(got.refused) {
			// Whatever keeps the files from being updated must not keep what the pod may not have.
			done.err = also(done.err, v.withdraw(ctx, got.refused))
		}
	}
	o := outcomeOf(done.err)
	if !o.retry && o.until.IsZero() && !errors.Is(done.err, errPutOff) {
		v.contents.changedAt = time.Time{} // it is shown, or can't be
	}
	done.again = earlier(earlier(done.again, o.until), v.ask())
	if v.mounted {
		due, err := v.tidy(ctx)
		done.again, done.err = earlier(done.again, due), also(done.err, err)
		v.noteWithdrawn(got.refused)
	}
	return done
}

// earlier returns the earlier of two times; zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// end removes a volume. It has a time of its own: the unpublish that asks for it may have ended this very sync's. If it
// fails, the volume lives on until the kubelet's next try: what pods still see must go on following its objects.
func (v *vol) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), syncTime)
	defer cancel()
	err := v.giveBack()
	if err == nil {
		err = v.p.opts.Mounts.Unmount(ctx, v.id, v.target)
	}
	v.set(func() { v.unmounted(err) })
	if err == nil || !v.mounted {
		v.remove(ctx, err == nil)
	}
}

// unmounted notes how an unmount ended. The caller holds mu.
func (v *vol) unmounted(err error) {
	v.unmounts, v.unmountErr, v.gone = v.unmounts+1, err, err == nil
}

// remove takes a volume out of the table that is not mounted, unless it has got another meaning since the worker's decision.
func (v *vol) remove(ctx context.Context, gone bool) {
	shown := v.contents.shown
	v.unregister()
	v.receipts.close()
	_ = v.giveBack() // nothing is mounted there any more
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.gone != gone || !gone && v.waits {
		return // it is due for that
	}
	v.p.leave(v)
	if logger := klog.FromContext(ctx).V(2); gone && logger.Enabled() {
		logger.Info("Unpublished volume", "refs", describe(v.told.refs, shown), "reason", "the kubelet asked for it")
	}
}

// look finds out, once, what is at the target: after a start, before the first write, and after a mount was lost.
func (v *vol) look(ctx context.Context) error {
	if v.seen {
		return nil
	}
	root, usage, err := v.p.opts.Mounts.Open(ctx, v.id, v.target)
	switch {
	case err == nil:
		defer root.Close()
	case errors.Is(err, mount.ErrForeign) && v.mounted: // its attribute was spoilt
		return fail(ReasonInvalid, "what is mounted at %s is not proven to be volume %s, as its root directory lacks the attribute: replace the pod: %w", v.target, v.id, err)
	case errors.Is(err, mount.ErrForeign):
		return fmt.Errorf("look at the target of volume %s: %w", v.id, err)
	case errors.Is(err, mount.ErrOutside):
		return fail(ReasonInvalid, "target_path: %w", err)
	case !errors.Is(err, mount.ErrNotMounted):
		// It may well be mounted, and a pod may be reading it: a final error would have the kubelet destroy it.
		return fail(ReasonUnavailable, "look at the target of volume %s: %w", v.id, err)
	}
	mounted := err == nil
	if !mounted && v.contents.shown != nil {
		klog.FromContext(ctx).Info("Volume is no longer mounted", "target", v.target)
	}
	text := ""
	if mounted {
		prefix := v.p.opts.AttributePrefix
		if text, err = writer.Record(root, prefix); err != nil {
			return fail(ReasonUnavailable, "read the record of volume %s: %w", v.id, err)
		}
		v.hint.UID = v.worker.uid
		v.hint.Namespace, v.hint.Name, v.hintErr = record.Pod(root, prefix)
	}
	v.unregister()
	if err := v.giveBack(); err != nil {
		return fail(ReasonUnavailable, "close the mount of volume %s: %w", v.id, err)
	}
	v.receipts.close()
	if v.contents = (contents{record: text}); mounted {
		v.contents.pruneAt = time.Now().Add(pruneTime) // the earlier process may have been killed before it pruned
		v.receipts.find(v.contents.pruneAt)
	}
	v.seen = true
	v.set(func() {
		v.mounted = mounted
		v.told.withdrawn = nil
		v.charge(memoryOf(usage.Used, usage.InodesUsed))
		v.told.opened = nil
		if v.want == nil {
			v.told.pod = v.hint
		}
	})
	return nil
}

// ask has the objects asked for again when that is due, and returns when it is next: at the resync, of which each volume has
// its own moment, or earlier while a publish waits.
func (v *vol) ask() time.Time {
	now := time.Now()
	switch {
	case now.Before(v.askAt):
		return v.askAt
	case !v.askAt.IsZero():
		v.p.opts.Objects.Refresh(v.specOf.Pod, v.registered)
	}
	switch resync := v.p.opts.ResyncInterval; {
	case !v.mounted:
		v.asked = min(max(v.asked*3/2, askMin), askMax)
	case v.asked == resync:
	default:
		v.asked = resync
		now = now.Add(rand.N(resync))
	}
	v.askAt = now.Add(v.asked)
	return v.askAt
}
