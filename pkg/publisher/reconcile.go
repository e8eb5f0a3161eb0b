package publisher

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// result is the result of a reconcile.
type result struct {
	// request is the one that was reconciled, and failures say why the volume is not in the wanted state.
	request  *binding.Request
	failures failure.List
	// again is when the volume is due again; zero for never.
	again time.Time
	// isTried means that the volume should have been unmounted, and unmountErr says why it is not.
	isTried    bool
	unmountErr error
	// isGone means that nothing is mounted and nothing was kept, so the volume is removed from the table unless a call has come.
	isGone bool
	// isFull means that the node is full.
	isFull bool
	state  state
	// news is what the worker logs, or nil.
	news *newsLine

	// awaited are the objects of which the first answer is still due.
	awaited map[volume.Ref]bool
	// isPartial is Answers.IsPartial: this result is not reported, because another reconcile comes with the next answer.
	isPartial bool
}

// reconcile brings a volume to its wanted state. A publish, a change, a resync, a restart and a withdrawal all use it. It reads the latest
// state, so the order of events does not matter, and a second call changes nothing. The steps:
//
//  1. If an unpublish came, the volume is unmounted and forgotten.
//  2. The target is examined once. If nothing is mounted and no publish waits, the volume is forgotten.
//  3. The volume is bound to a request: the kubelet's, or one that is derived from the pod's spec.
//  4. The pod of a new volume is admitted.
//  5. The answers about the objects are read.
//  6. The files show the answers: see show. If that fails, at least the files of refused objects are removed.
//  7. The objects are refreshed, if that is due.
//  8. Superseded generations are pruned, receipts are saved, and the memory is measured, as far as these are due. This happens
//     whatever the other steps returned.
func (v *vol) reconcile(ctx context.Context, now snapshot) (done result) {
	done.request = now.request
	if now.lost {
		v.isSeen, v.isMounted = false, false
	}
	if v.changedAt.IsZero() {
		v.changedAt = now.changedAt
	}
	if now.going { // 1
		err := v.unmount(ctx)
		return result{
			request: now.request, failures: failure.List{failure.Waiting(errUnpublished)}, again: time.Now(),
			isTried: true, unmountErr: err, isGone: err == nil || !v.isMounted, state: v.report.state(v.isMounted),
		}
	}
	found := failure.List(nil).With(v.look(ctx)) // 2
	if !v.isMounted && !now.waits {
		v.release()
		return result{request: now.request, failures: failure.List{failure.Waiting(errNobody)}, isGone: true, state: v.report.state(false)}
	}
	hasLooked := v.isSeen
	if len(found) == 0 {
		found = v.catchUp(ctx, now, &done) // 3 to 7
	}
	if v.isMounted { // 8
		due, more := v.tidy(ctx, now.measure)
		found, done.again = found.With(more...), earlier(done.again, due)
	}
	if hasLooked && !v.isSeen && v.isMounted {
		done.again = time.Now() // the mount was lost meanwhile: examine the target now
	}
	v.finish(ctx, &done, found)
	return done
}

// catchUp does steps 3 to 7 of reconcile.
func (v *vol) catchUp(ctx context.Context, now snapshot, done *result) (found failure.List) {
	before := v.staged
	v.staged = staged{}
	request, f := v.binding.Derive(now.request)
	if done.request = request; now.request == nil {
		v.report.pod = v.binding.Hint()
	}
	if f != nil {
		return failure.List{f}
	}
	isNew, f := v.binding.Bind(ctx, request, binding.State{IsMounted: v.isMounted, IsUrgent: now.waits})
	if f != nil {
		return failure.List{f}
	}
	if isNew {
		v.takeOver(ctx)
	}
	if v.isMounted && v.binding.Spec().Pinned() {
		v.leave()
		return nil
	}
	if !v.isMounted {
		if found := v.binding.Admit(); len(found) > 0 { // 4
			return found
		}
	}
	got := v.binding.Answers(v.isMounted, v.files.Record) // 5
	done.isPartial, done.awaited = got.IsPartial(), got.Awaited
	v.reportWithdrawn(got.Refused)
	if next := v.files.generations.nextSwitch(); v.isMounted && !v.isCurrent(got) && time.Now().Before(next) {
		done.again, found = next, failure.List{failure.Waiting(failure.ErrPutOff)}
	} else {
		found = v.show(ctx, got, before, done) // 6
	}
	if v.isMounted && v.files.showsAny(got.Confirmed()) { // they must go even if the files cannot be updated, or wait
		found = found.With(v.failed(v.withdraw(ctx, got.Refused)))
	}
	v.reportWithdrawn(got.Refused)
	v.settleChange(found)
	done.again = earlier(done.again, v.staged.Until)
	done.again = earlier(done.again, v.binding.Refresh(v.isMounted, len(found) == 0 && v.staged.waits.condition == "", v.files.newerThan(got.Record()))) // 7
	return found
}

// finish says what follows from what a reconcile has found. What interrupts a reconcile is no fault of the volume.
func (v *vol) finish(ctx context.Context, done *result, found failure.List) {
	cause := context.Cause(ctx)
	hangs := errors.Is(cause, errHangs)
	if hangs && len(found) > 0 && !errors.Is(found, failure.ErrCrowded) {
		found = failure.List{failure.Broken(0, errHangs)}.With(found...)
	}
	done.failures, done.again = found, earlier(done.again, v.retryAt(found))
	if found = found.With(v.staged.mistake); (cause == nil || hangs) && !done.isPartial && v.report.note(found, v.staged.waits, v.isMounted) {
		done.news = v.line(ctx, found)
	}
	done.state = v.report.state(v.isMounted)
}

// panicked returns the result of a reconcile that has panicked. The next one examines everything again.
func (v *vol) panicked(ctx context.Context, now snapshot) result {
	done := result{request: now.request, isTried: now.going}
	if now.going {
		done.unmountErr = failure.ErrPanicked
	}
	v.isSeen, v.files.verified = false, false
	_ = v.files.closeHandle() // the work may have stopped anywhere
	v.finish(ctx, &done, failure.List{failure.Unavailable("volume %s: %w", v.ID, failure.ErrPanicked)})
	return done
}

// line returns what the worker logs about a volume's new state, or nil, and reports failures to the pod's author.
func (v *vol) line(ctx context.Context, found failure.List) *newsLine {
	logger, worst, w := klog.FromContext(ctx), found.Worst(), v.staged.waits
	var line *newsLine
	switch {
	case worst == nil && w.condition == "":
		return &newsLine{log: func(more ...any) { logger.Info("Volume is current again", more...) }}
	case worst == nil && w.condition == ConditionSpreading:
		logger.V(2).Info("An update waits for the pod's moment", "at", w.until)
		return nil
	case worst == nil:
		logger.V(2).Info("An update is held", "reason", w.text)
		return nil
	case !v.isMounted: // the failing call is logged
	case worst.Kind >= failure.Unknown:
		return &newsLine{kind: newsKind(found), log: func(more ...any) {
			logger.Info("A mounted volume is not updated", append([]any{"target", v.Target, "reason", found}, more...)...)
		}}
	default:
		line = &newsLine{kind: newsKind(found), log: func(more ...any) { logger.Error(found, "Volume does not show what it should", more...) }}
	}
	if pod := v.report.pod; pod.Name != "" {
		text := found.Error()
		if v.isMounted && errors.As(found, new(*payload.MissingError)) {
			text += "; the files stay as they are"
		}
		v.opts.Events.Warn(pod, worst.Condition(), text)
	}
	return line
}

// newsKind returns which failures share a line. Their key is finer: it may name keys of objects, which differ from volume to volume.
func newsKind(all failure.List) string {
	var errno syscall.Errno
	errors.As(all, &errno)
	worst := all.Worst()
	return fmt.Sprint(worst.Condition(), " ", worst.Reason, " ", int(errno))
}
