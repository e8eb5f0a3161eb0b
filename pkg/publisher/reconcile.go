package publisher

import (
	"context"
	"time"
)

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
		v.seen = false
	}
	if v.changedAt.IsZero() {
		v.changedAt = now.changedAt
	}
	if now.going { // 1
		v.unmount(ctx)
		return result{request: now.request, again: time.Now(), failure: waiting(errUnpublished)}
	}
	f := v.look(ctx) // 2
	if !v.entry.isMounted() && !now.waits {
		v.forget()
		return result{request: now.request, failure: waiting(errNobody)}
	}
	hasLooked := v.seen
	if f == nil {
		f = v.follow(ctx, now, &done) // 3 to 7
	}
	if v.entry.isMounted() { // 8
		due, more := v.tidy(ctx, now.measure)
		f, done.again = also(f, more), earlier(done.again, due)
		if f == nil { // what waits is no fault, so any fault is reported instead
			f = v.staged.failure
		}
	}
	if hasLooked && !v.seen && v.entry.isMounted() {
		done.again = time.Now() // the mount was lost meanwhile: examine the target now
	}
	done.failure = f
	return done
}

// follow does steps 3 to 7 of reconcile.
func (v *vol) follow(ctx context.Context, now snapshot, done *result) (f *failure) {
	before := v.staged
	v.staged = staged{}
	if done.request, f = v.binding.derive(now.request); f != nil {
		return f
	}
	isNew, f := v.binding.bind(ctx, done.request, now.waits)
	if f != nil {
		return f
	}
	if isNew {
		v.takeOver(ctx)
	}
	if v.entry.isMounted() && v.binding.spec.Pinned() {
		v.binding.release() // the files are never written again
		return nil
	}
	if !v.entry.isMounted() {
		if f := v.binding.rights.admit(done.request.came); f != nil { // 4
			return f
		}
	}
	got := v.binding.answers(v.files.has) // 5
	done.partial = got.isPartial()
	v.reportWithdrawn(got.refused)
	switch next := v.files.generations.nextSwitch(); {
	case v.entry.isMounted() && !v.files.isCurrent(got) && time.Now().Before(next):
		done.again, f = next, waiting(errPutOff)
	default:
		f = v.show(ctx, got, before) // 6
		if f != nil && v.entry.isMounted() && v.files.showsAny(got.refused) {
			f = also(f, v.withdraw(ctx, got.refused)) // even if the files cannot be updated, these must go
		}
	}
	v.reportWithdrawn(got.refused)
	v.settleChange(f)
	done.again = earlier(done.again, v.staged.Until)
	done.again = earlier(done.again, v.binding.refresh()) // 7
	return f
}
