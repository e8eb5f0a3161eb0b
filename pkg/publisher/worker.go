package publisher

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/volume"
)

// reconcileTimeout limits one reconcile.
const reconcileTimeout = time.Minute

// startWorkers has workers run until stopWorkers. start runs a worker in a goroutine of its own.
func (t *table) startWorkers(start func(*worker)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start = start
	for _, w := range t.workers {
		w.schedule()
	}
}

// stopWorkers has each worker run for the last time. The context of all workers must have ended.
func (t *table) stopWorkers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, w := range t.workers {
		w.begin()
	}
	t.start = nil
}

// begin starts the worker's goroutine, unless it is running or no worker may run. The caller holds mu.
func (w *worker) begin() {
	if w.table.start == nil || w.running {
		return
	}
	w.running = true
	w.timer.Stop()
	w.table.start(w)
}

// wake is begin for a caller that doesn't hold mu.
func (w *worker) wake() {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	w.begin()
}

// schedule has a resting worker run when its first volume is due. The caller holds mu.
func (w *worker) schedule() {
	if w.table.start == nil || w.running {
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
func (w *worker) run(ctx context.Context, opens opened.Watcher) {
	for {
		if w.isNewsDue() { // before next, because another goroutine may run as soon as the worker rests
			w.news.log()
		}
		e, its, now, ended := w.next(ctx)
		switch {
		case ended:
			w.news.log()
			w.end(context.WithoutCancel(ctx), opens)
			return
		case e == nil:
			return
		}
		w.conclude(ctx, e, w.reconcile(its, e, now))
	}
}

// end saves the receipts that have arrived and closes the kept handles.
func (w *worker) end(ctx context.Context, opens opened.Watcher) {
	if opens != nil {
		_ = opens.Drain(opened.DrainTime) // opens that it cannot report are unknown to the next process
	}
	w.table.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.table.mu.Unlock()
	for _, e := range all {
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
		w.running = false
		w.schedule()
		return nil, nil, snapshot{}, false
	}
	first.due = time.Time{}
	first.rounds++
	w.current = first
	its, w.cancel = context.WithCancelCause(ctx)
	return first, its, first.take(), false
}

// take returns what is wanted of a volume and what has changed since the last call. The caller holds mu.
func (e *entry) take() snapshot {
	now := snapshot{wanted: e.wanted, changedAt: e.changedAt}
	if e.wanted.lost {
		e.wanted.lost, e.phase = false, absent
	}
	e.changedAt, e.wanted.measure = time.Time{}, false
	if request := e.wanted.request; request != nil && request.PodErr == nil {
		e.report.pod = request.Pod
	}
	return now
}

// reconcile reconciles a volume within reconcileTimeout. It turns a panic into a failure of this volume, so that the other volumes
// continue.
func (w *worker) reconcile(ctx context.Context, e *entry, now snapshot) (done result) {
	ctx, cancel := context.WithTimeoutCause(e.logged(ctx), reconcileTimeout, errHangs)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, cause)
			e.vol.doubt()
			done = result{request: now.request, failure: unavailable("volume %s: %w", e.id, errPanicked)}
			e.set(func() {
				if e.wanted.going {
					e.noteUnmount(errPanicked)
				}
				if e.phase == attaching {
					e.phase = absent
				}
			})
		}
		if f := done.failure; f != nil && !errors.Is(f.err, errCrowded) && errors.Is(context.Cause(ctx), errHangs) {
			done.failure = also(broken(errHangs), f)
		}
	}()
	return e.vol.reconcile(ctx, now)
}

// conclude stores the result of a reconcile and schedules the next one.
func (w *worker) conclude(run context.Context, e *entry, done result) {
	f := done.failure
	w.table.mu.Lock()
	w.cancel(nil)
	w.current, w.cancel = nil, nil
	if run.Err() != nil || e.phase == removed {
		w.table.mu.Unlock()
		return // what a stop interrupts is no fault of the volume
	}
	if again := earlier(done.again, e.vol.retryAt(f)); !again.IsZero() {
		e.wakeLocked(again) // it keeps an earlier time that was set meanwhile
	}
	isNews := false
	if e.wanted.request == done.request && !e.wanted.going { // a failure belongs to the request for which it was found
		if e.failure == nil || f == nil || !f.unanswered {
			e.failure = f
		}
		isNews = !done.partial && e.report.note(f, e.phase == mounted)
	}
	e.notify()
	w.table.mu.Unlock()
	if isNews {
		e.vol.reportNews(run, f)
	}
}

// logged returns ctx with a logger that names the volume's ID, the pod, and the volume's name in the pod's spec. The lines count for the pod.
func (e *entry) logged(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx).WithValues("volumeID", e.id)
	if pod := e.report.pod; pod.Name != "" {
		logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name))
	}
	if _, name := targetParts(e.table.kubeletDir, e.target); isElement(name) {
		logger = logger.WithValues("volume", name)
	}
	pod := volume.Pod{Namespace: e.report.pod.Namespace, Name: e.report.pod.Name, UID: e.worker.uid}
	return klog.NewContext(ctx, e.table.logLimit.Logger(logger, pod))
}
