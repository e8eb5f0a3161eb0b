package publisher

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/opened"
)

// worker reconciles the volumes of a pod, one after another. It exists as long as the pod has volumes, and has a goroutine only while one of
// them is due: most pods rest most of the time, and a stack for each costs more memory than all else that a volume needs. table.mu guards its
// fields.
type worker struct {
	table *table
	uid   types.UID
	all   map[*entry]struct{}
	// isRunning means that the goroutine exists. timer starts it when the first volume is due; it is set only while the worker rests.
	isRunning bool
	timer     *time.Timer
	// current is the volume that is being reconciled, and cancel cancels that.
	current *entry
	cancel  context.CancelCauseFunc
	// news is used only by the goroutine, without mu.
	news news
}

func newWorker(t *table, uid types.UID) *worker {
	w := &worker{table: t, uid: uid, all: map[*entry]struct{}{}}
	w.timer = time.AfterFunc(time.Hour, w.wake)
	w.timer.Stop()
	return w
}

// startWorkers has workers run until ctx ends.
func (t *table) startWorkers(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.run = ctx
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
	t.run = nil
}

// begin starts the worker's goroutine, unless it is running or no worker may run. The caller holds mu.
func (w *worker) begin() {
	ctx := w.table.run
	if ctx == nil || w.isRunning {
		return
	}
	w.isRunning = true
	w.timer.Stop()
	w.table.running.Go(func() { w.run(ctx) })
}

// wake is begin for a caller that doesn't hold mu.
func (w *worker) wake() {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.begin()
}

// schedule has a resting worker run when its first volume is due. The caller holds mu.
func (w *worker) schedule() {
	if w.table.run == nil || w.isRunning {
		return
	}
	first := w.first()
	if first == nil {
		w.timer.Stop()
		return
	}
	if wait := time.Until(first.due); wait > 0 {
		w.timer.Reset(wait)
	} else {
		w.begin()
	}
}

// first returns the volume that is due first, or nil if none will be due. The caller holds mu.
func (w *worker) first() *entry {
	var first *entry
	for e := range w.all {
		if !e.due.IsZero() && (first == nil || e.due.Before(first.due)) {
			first = e
		}
	}
	return first
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
			w.news.add(e.vol, *done.news)
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

// volumes returns the pod's volumes.
func (w *worker) volumes() []*entry {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	return slices.Collect(maps.Keys(w.all))
}

// makeRoom is host.makeRoom.
func (w *worker) makeRoom(ctx context.Context) {
	for _, e := range w.volumes() {
		e.vol.makeRoom(ctx)
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
	ctx, cancel := context.WithTimeoutCause(e.vol.logged(ctx), reconcileTimeout, errHangs)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, cause)
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
