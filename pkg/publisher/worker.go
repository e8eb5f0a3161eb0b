package publisher

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"
)

const (
	// restTime is how long a worker waits for which nothing is due.
	restTime = time.Hour
	// reconcileTimeout is how long a reconcile may write.
	reconcileTimeout = time.Minute
)

// startWorkers starts the goroutines of the workers, also of later ones, until stopWorkers.
func (t *table) startWorkers(start func(*worker)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start = start
	for _, w := range t.workers {
		start(w)
	}
}

func (t *table) stopWorkers() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.start = nil
}

// run reconciles the pod's volumes, the one that is due first before the others, until there is none, or ctx ends.
func (w *worker) run(ctx context.Context, opens Opens) {
	for {
		e, its, now, wait := w.next(ctx)
		if e != nil {
			w.conclude(ctx, e, w.reconcile(its, e, now))
			continue
		}
		if wait == 0 {
			break
		}
		timer := time.NewTimer(wait)
		select {
		case <-w.poke:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	w.end(context.WithoutCancel(ctx), opens)
}

// end saves the receipts that have come, and closes the handles that are kept.
func (w *worker) end(ctx context.Context, opens Opens) {
	if opens != nil {
		_ = opens.Drain(drainTime) // what it can't report is unknown to the next process
	}
	w.table.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.table.mu.Unlock()
	for _, e := range all {
		e.vol.close(ctx)
	}
}

// next takes the volume that is due first, with the context of its reconcile and what is wanted of it, or returns how long to
// wait; 0 for nothing. What is taken is current in the same moment, so that no unpublish comes between.
func (w *worker) next(ctx context.Context) (*entry, context.Context, snapshot, time.Duration) {
	w.table.mu.Lock()
	defer w.table.mu.Unlock()
	if ctx.Err() != nil || len(w.all) == 0 {
		return nil, nil, snapshot{}, 0
	}
	var first *entry
	var at time.Time
	for e, due := range w.due {
		if first == nil || due.Before(at) {
			first, at = e, due
		}
	}
	switch wait := time.Until(at); {
	case first == nil:
		return nil, nil, snapshot{}, restTime
	case wait > 0:
		return nil, nil, snapshot{}, wait
	}
	delete(w.due, first)
	first.rounds++
	w.current = first
	ctx, w.cancel = context.WithCancelCause(ctx)
	return first, ctx, first.take(), 0
}

// take returns what is wanted of a volume, and what has changed since the last time. The caller holds mu.
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

// reconcile reconciles a volume, in its time. It makes a panic an error of the volume, so that one can't take all others with
// it.
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

// conclude does what follows from a reconcile.
func (w *worker) conclude(run context.Context, e *entry, done result) {
	f := done.failure
	w.table.mu.Lock()
	w.cancel(nil)
	w.current, w.cancel = nil, nil
	if run.Err() != nil || e.phase == removed {
		w.table.mu.Unlock()
		return // what the end cuts short is no fault of the volume
	}
	if again := earlier(done.again, e.vol.retryAt(f)); !again.IsZero() {
		e.wakeLocked(again) // which keeps an earlier one that came meanwhile
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

// logged returns ctx with a logger that names the volume: by its id, by its name in the spec of its pod, and by that.
func (e *entry) logged(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx).WithValues("volumeID", e.id)
	if pod := e.report.pod; pod.Name != "" {
		logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name))
	}
	if _, name := targetParts(e.table.kubeletDir, e.target); isElement(name) {
		logger = logger.WithValues("volume", name)
	}
	return klog.NewContext(ctx, logger)
}
