package publisher

import (
	"context"
	"time"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/opened"
)

// startWorkers has workers run until stopWorkers. start runs a worker in a goroutine of its own.
func (t *table) startWorkers(start func(*worker)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start = start
	for _, w := range t.workers {
		w.schedule()
	}
}

// stopWorkers has each worker run for the last time. The context of the workers must have ended.
func (t *table) stopWorkers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		w.begin()
	}
	t.start = nil
}

// run reconciles the pod's volumes in the order in which they are due, until none is due or ctx ends.
func (w *worker) run(ctx context.Context) {
	for {
		if w.isNewsDue() { // before next, because another goroutine may run as soon as the worker rests
			w.news.log()
		}
		e, its, now, ended := w.next(ctx)
		switch {
		case ended:
			w.news.log()
			w.end(context.WithoutCancel(ctx))
			return
		case e == nil:
			return
		}
		done := e.reconcile(its, now)
		if w.conclude(ctx, e, &done) && done.news != nil {
			w.news.add(e.ID, *done.news)
		}
	}
}

// end saves the receipts that have arrived and closes the kept handles.
func (w *worker) end(ctx context.Context) {
	if opens := w.table.node.opts.Opens; opens != nil {
		_ = opens.Drain(opened.DrainTime) // opens that it cannot report are unknown to the next process
	}
	for _, e := range w.volumes() {
		e.vol.close(ctx)
	}
}

// next takes the volume that is due first, and returns it with the context of its reconcile and what is wanted of it. If none is due, it
// returns nil, and the worker rests from then on. ended reports that ctx has ended. next sets current under the same lock, so that no
// unpublish comes between.
func (w *worker) next(ctx context.Context) (_ *entry, its context.Context, now snapshot, ended bool) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if ctx.Err() != nil {
		return nil, nil, snapshot{}, true // it is still running, so that no other goroutine starts
	}
	first := w.first()
	if first == nil || time.Until(first.due) > 0 {
		w.isRunning = false
		w.schedule()
		return nil, nil, snapshot{}, false
	}
	first.due = time.Time{}
	first.rounds++
	w.current = first
	its, w.cancel = context.WithCancelCause(ctx)
	return first, its, first.take(), false
}

// reconcile reconciles a volume within reconcileTimeout. It turns a panic into a failure of this volume, so that the other volumes
// continue.
func (e *entry) reconcile(ctx context.Context, now snapshot) (done result) {
	ctx, cancel := context.WithTimeoutCause(e.vol.logged(ctx, now.request), reconcileTimeout, errHangs)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			failure.LogPanic(ctx, cause)
			done = e.vol.panicked(ctx, now)
		}
	}()
	return e.vol.reconcile(ctx, now)
}

// conclude ends a reconcile. It reports whether the result counts: what the end of the process interrupts is no fault of the volume.
func (w *worker) conclude(ctx context.Context, e *entry, done *result) bool {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.cancel(nil)
	w.current, w.cancel = nil, nil
	if ctx.Err() != nil && !done.isTried {
		return false
	}
	e.adopt(done)
	return true
}

// isNewsDue reports whether the news must be logged now, because the worker is about to rest or because they have waited for newsDelay.
func (w *worker) isNewsDue() bool {
	if len(w.news.lines) == 0 {
		return false
	}
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	first := w.first()
	return first == nil || time.Until(first.due) > 0 || time.Since(w.news.since) >= newsDelay
}

// take returns what is wanted of a volume and what has changed since the last call. The caller holds mu.
func (e *entry) take() snapshot {
	now := snapshot{wanted: e.wanted, changedAt: e.changedAt}
	if e.wanted.lost {
		e.wanted.lost, e.phase = false, absent
	}
	e.changedAt, e.wanted.measure, e.awaited = time.Time{}, false, nil
	return now
}

// adopt stores the result of a reconcile and schedules the next one. The caller holds mu.
func (e *entry) adopt(done *result) {
	e.tellLocked(done.state)
	e.awaited = done.awaited
	isGone := done.isGone && !e.wanted.waits
	if done.isTried {
		e.unmounts, e.unmountErr = e.unmounts+1, done.unmountErr
		e.wanted.going = done.unmountErr == nil
		isGone = done.isGone && (e.wanted.going || !e.wanted.waits)
	} else if e.wanted.going {
		isGone = false // an unpublish came since the worker decided
	}
	if isGone {
		e.remove()
		return
	}
	if !done.again.IsZero() {
		e.wakeLocked(done.again) // it keeps an earlier time that was set meanwhile
	}
	if done.isFull {
		e.table.measureAll()
	}
	if e.wanted.request == nil {
		e.wanted.request = done.request
	}
	// A failure belongs to the request for which it was found.
	if e.wanted.request == done.request && !e.wanted.going && (len(e.failures) == 0 || !done.failures.IsUnanswered()) {
		e.failures = done.failures
	}
}
