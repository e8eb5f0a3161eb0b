package publisher

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/payload"
)

const (
	// Retries after a failure start at retryMin and double up to retryMax, so that a volume recovers soon after the cause
	// of the failure has gone.
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
	// restTime is how long a worker waits for which nothing is due.
	restTime = time.Hour
)

// startWorkers starts the goroutines of the workers, also of later ones, until stopWorkers.
func (p *Publisher) startWorkers(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = func(w *worker) { p.running.Go(func() { w.run(ctx) }) }
	for _, w := range p.workers {
		p.start(w)
	}
}

func (p *Publisher) stopWorkers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = nil
}

// run syncs the pod's volumes, the one that is due first before the others, until there is none, or ctx ends.
func (w *worker) run(ctx context.Context) {
	for {
		v, its, wait := w.next(ctx)
		if v != nil {
			w.conclude(ctx, v, v.guarded(v.logged(its), v.sync))
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
	w.end(context.WithoutCancel(ctx))
}

// end keeps the receipts that have come, and closes the handles that are kept.
func (w *worker) end(ctx context.Context) {
	if w.p.opts.Opens != nil {
		_ = w.p.opts.Opens.Drain() // what it can't tell of is unknown to the next process
	}
	w.p.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.p.mu.Unlock()
	for _, v := range all {
		if v.spec != nil && v.mounted && !v.receipts.dueAt().IsZero() {
			_ = v.through(ctx, func(mnt Mount) error { v.receipts.save(ctx, mnt.Root()); return nil })
		}
		_ = v.giveBack() // the process ends
	}
}

// next takes the volume that is due first, with the context of its sync, or returns how long to wait; 0 for nothing. What is
// taken is current in the same moment, so that no unpublish comes between.
func (w *worker) next(ctx context.Context) (*vol, context.Context, time.Duration) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if ctx.Err() != nil || len(w.all) == 0 {
		return nil, nil, 0
	}
	var first *vol
	var at time.Time
	for v, due := range w.due {
		if first == nil || due.Before(at) {
			first, at = v, due
		}
	}
	switch wait := time.Until(at); {
	case first == nil:
		return nil, nil, restTime
	case wait > 0:
		return nil, nil, wait
	}
	delete(w.due, first)
	first.syncs++
	w.current = first
	ctx, w.cancel = context.WithCancelCause(ctx)
	return first, ctx, 0
}

// guarded does something to a volume, in its time. It makes a panic an error of the volume, so that one can't take all others
// with it.
func (v *vol) guarded(ctx context.Context, do func(context.Context) synced) (done synced) {
	ctx, cancel := context.WithTimeoutCause(ctx, syncTime, errHangs)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, cause)
			v.contents.proven, v.seen = false, false
			v.set(func() {
				done = synced{want: v.want, err: fail(ReasonUnavailable, "volume %s: %w", v.id, errPanicked)}
				if v.gone {
					v.unmounted(errPanicked)
				}
				v.attaching = false
			})
		}
		if done.err != nil && !errors.Is(done.err, errCrowded) && errors.Is(context.Cause(ctx), errHangs) {
			done.err = also(errHangs, done.err)
		}
	}()
	return do(ctx)
}

// conclude sees to what follows from a sync.
func (w *worker) conclude(run context.Context, v *vol, done synced) {
	o := outcomeOf(done.err)
	if v.has(o.missing()) {
		o.event = eventRefDeleted
	}
	w.p.mu.Lock()
	w.cancel(nil)
	w.current, w.cancel = nil, nil
	if run.Err() != nil || v.removed {
		w.p.mu.Unlock()
		return // what the end cuts short is no fault of the volume
	}
	again := done.again
	if o.retry {
		again = earlier(again, time.Now().Add(min(retryMin<<min(v.failures, 10), retryMax)))
		v.failures++
	} else {
		v.failures = 0
	}
	if !again.IsZero() {
		w.p.wake(v, again) // which keeps an earlier one that came meanwhile
	}
	news := false
	if v.want == done.want && !v.gone { // an error belongs to the request for which it was found
		if v.err == nil || !o.isPending() {
			v.err = done.err
		}
		news = !done.pending && v.told.note(o, v.mounted)
	}
	v.notify()
	w.p.mu.Unlock()
	if news {
		v.tell(run, o)
	}
}

// tell logs what is wrong with a volume, and tells the pod's author.
func (v *vol) tell(ctx context.Context, o outcome) {
	logger := klog.FromContext(v.logged(ctx))
	switch {
	case !v.mounted: // the call that fails is logged
	case o.err == nil:
		logger.Info("Volume is current again")
		return
	case o.event == string(ConditionSpreading):
		logger.V(2).Info("An update waits for the pod's moment", "at", o.until)
		return
	case o.silent:
		logger.Info("A mounted volume is not updated", "target", v.target, "reason", o.err.Error())
		return
	default:
		logger.Error(o.err, "Volume does not show what it should")
	}
	if v.told.pod.Name != "" {
		text := o.err.Error()
		if v.mounted && errors.As(o.err, new(*payload.MissingError)) {
			text += "; the files stay as they are"
		}
		v.p.opts.Events.Warn(v.told.pod, o.event, text)
	}
}
