package publisher

import (
	"context"
	"errors"
	"time"
)

// reconcileTimeout limits one reconcile.
const reconcileTimeout = time.Minute

// wanted is what the calls want of a volume.
type wanted struct {
	// request is nil for a mounted volume of an earlier process until the request is known.
	request *Request
	// waits means that a publish waits. A volume that is not mounted exists only while a publish waits.
	waits bool
	// going means that an unpublish waits for the unmount. It ends when the volume is unmounted, or when that fails.
	going bool
	// lost means that a publish found no mount, so the worker must examine the target again.
	lost bool
	// measure means that the node is full, so the volume must be measured again.
	measure bool
}

// snapshot is what a reconcile reads of the table when it starts. Later changes make the volume due again.
type snapshot struct {
	wanted
	// changedAt is when the first change came that no reconcile has processed; zero for none.
	changedAt time.Time
	// isMounted is the volume's state after step 2 of reconcile.
	isMounted bool
}

// result is the result of a reconcile.
type result struct {
	// request is the one that was reconciled, and failures say why the volume is not in the wanted state.
	request  *Request
	failures failures
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

	// isPartial is answers.isPartial: this result is not reported, because another reconcile comes with the next answer.
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
	if request := now.request; request != nil && request.PodErr == nil {
		v.report.pod = request.Pod
	}
	if now.lost {
		v.isSeen, v.isMounted = false, false
	}
	if v.changedAt.IsZero() {
		v.changedAt = now.changedAt
	}
	if now.going { // 1
		err := v.unmount(ctx)
		return result{
			request: now.request, failures: failures{waiting(errUnpublished)}, again: time.Now(),
			isTried: true, unmountErr: err, isGone: err == nil || !v.isMounted, state: v.report.state(v.isMounted),
		}
	}
	found := failures(nil).with(v.look(ctx)) // 2
	if now.isMounted = v.isMounted; !v.isMounted && !now.waits {
		v.release()
		return result{request: now.request, failures: failures{waiting(errNobody)}, isGone: true, state: v.report.state(false)}
	}
	hasLooked := v.isSeen
	if len(found) == 0 {
		found = v.catchUp(ctx, now, &done) // 3 to 7
	}
	if v.isMounted { // 8
		due, more := v.tidy(ctx, now.measure)
		found, done.again = found.with(more...), earlier(done.again, due)
	}
	if hasLooked && !v.isSeen && v.isMounted {
		done.again = time.Now() // the mount was lost meanwhile: examine the target now
	}
	v.finish(ctx, &done, found)
	return done
}

// catchUp does steps 3 to 7 of reconcile.
func (v *vol) catchUp(ctx context.Context, now snapshot, done *result) (found failures) {
	before := v.staged
	v.staged = staged{}
	request, f := v.binding.derive(now.request)
	if done.request = request; now.request == nil {
		v.report.pod = v.binding.hint
	}
	if f != nil {
		return failures{f}
	}
	isNew, f := v.binding.bind(ctx, request, now)
	if f != nil {
		return failures{f}
	}
	if isNew {
		v.takeOver(ctx)
	}
	if v.isMounted && v.binding.spec.Pinned() {
		v.leave()
		return nil
	}
	if !v.isMounted {
		if found := v.binding.rights.admit(request.came); len(found) > 0 { // 4
			return found
		}
	}
	got := v.binding.answers(v.isMounted, v.files.has) // 5
	done.isPartial = got.isPartial()
	v.reportWithdrawn(got.refused)
	switch next := v.files.generations.nextSwitch(); {
	case v.isMounted && !v.files.isCurrent(got) && time.Now().Before(next):
		done.again, found = next, failures{waiting(errPutOff)}
	default:
		found = v.show(ctx, got, before, done) // 6
		if len(found) > 0 && v.isMounted && v.files.showsAny(got.refused) {
			found = found.with(v.failed(v.withdraw(ctx, got.refused))) // even if the files cannot be updated, these must go
		}
	}
	v.reportWithdrawn(got.refused)
	v.settleChange(found)
	done.again = earlier(done.again, v.staged.Until)
	done.again = earlier(done.again, v.binding.refresh(v.isMounted)) // 7
	return found
}

// finish says what follows from what a reconcile has found. What interrupts a reconcile is no fault of the volume.
func (v *vol) finish(ctx context.Context, done *result, found failures) {
	cause := context.Cause(ctx)
	hangs := errors.Is(cause, errHangs)
	if hangs && len(found) > 0 && !errors.Is(found, errCrowded) {
		found = failures{broken(0, errHangs)}.with(found...)
	}
	done.failures, done.again = found, earlier(done.again, v.retryAt(found))
	if found = found.with(v.staged.mistake); (cause == nil || hangs) && !done.isPartial && v.report.note(found, v.staged.waits, v.isMounted) {
		done.news = v.line(ctx, found)
	}
	done.state = v.report.state(v.isMounted)
}

// panicked returns the result of a reconcile that has panicked. The next one examines everything again.
func (v *vol) panicked(ctx context.Context, now snapshot) result {
	done := result{request: now.request, isTried: now.going}
	if now.going {
		done.unmountErr = errPanicked
	}
	v.isSeen, v.files.verified = false, false
	v.finish(ctx, &done, failures{unavailable("volume %s: %w", v.id, errPanicked)})
	return done
}
