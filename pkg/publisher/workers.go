package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// A container can have the writes to its own volume hang: from Linux 6.19 on the owner of a
// directory may hold a delegation on it, and each change of the directory waits for its end, up to
// fs.lease-break-time. One pod's author must not hold up the volumes of others by that.
const (
	// podReconciles is how many volumes of one pod are reconciled at once.
	podReconciles = 2
	// hangTime is how long a reconcile may take before another worker is started. Nearly all take
	// a few milliseconds; where the machine is that busy, one more worker does no harm.
	hangTime = time.Second
	// reconcileTime is how long a reconcile may write. With a place at the render gate it keeps
	// that from others.
	reconcileTime = time.Minute
	// endTime is how long the end of the plugin waits for the reconciles that are under way.
	endTime = 5 * time.Second
	// After a reconcile that hung, its pod rests restFactor times as long. firstRest bounds that, as the
	// machine may have been the cause; each further hang doubles the bound, up to maxRest.
	restFactor = 4
	firstRest  = 10 * time.Second
	maxRest    = 10 * time.Minute
)

// errHangs is why a reconcile ended after reconcileTime.
var errHangs = errors.New("changes of the volume's directories take too long; does a container hold delegations on them?")

// turns are those of one pod's volumes. Publisher.mu guards it.
type turns struct {
	// running counts the reconciles under way.
	running int
	// waiting holds volumes that wait for the end of one. Each end queues the next: so while there are
	// any, one of the pod's volumes is being reconciled or queued.
	waiting map[string]struct{}
	// until is when the pod has rested, bound what bounds its next rest, and forgotten when
	// that is firstRest again.
	until, forgotten time.Time
	bound            time.Duration
}

// startWorker starts a worker, which reconciles volumes until the queue shuts down, or one of them
// hangs.
func (p *Publisher) startWorker(ctx context.Context) {
	p.workers.Go(func() {
		for p.reconcileNext(ctx) {
		}
	})
}

// waitForWorkers returns when all have ended, but waits at most endTime for those whose reconcile hangs.
func (p *Publisher) waitForWorkers() {
	ended := make(chan struct{})
	go func() {
		p.workers.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endTime):
	}
}

// takeTurn says whether a volume can be reconciled now. If not, and it is still active, it is queued
// again once others of its pod are done, or the pod has rested.
func (p *Publisher) takeTurn(v *published) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !v.active {
		return false
	}
	pod := v.request.Pod.UID
	t := p.turns[pod]
	if t == nil {
		t = &turns{waiting: map[string]struct{}{}}
		p.turns[pod] = t
	}
	if t.running == podReconciles {
		t.waiting[v.request.VolumeID] = struct{}{}
		return false
	}
	if rest := time.Until(t.until); rest > 0 {
		p.queue.AddAfter(v.request.VolumeID, rest)
		return false
	}
	t.running++
	return true
}

// endTurn ends a turn, with how long its reconcile hung. The caller holds mu.
func (p *Publisher) endTurn(pod types.UID, hung time.Duration) {
	t := p.turns[pod]
	t.running--
	if hung > 0 {
		p.rest(pod, hung)
	}
	// The next one's turn comes when it is taken off the queue: other pods are before it.
	p.callWaiting(t, 1)
	p.forgetTurns(pod)
}

// rest has a pod rest after a reconcile that hung. The caller holds mu.
func (p *Publisher) rest(pod types.UID, hung time.Duration) {
	t, now := p.turns[pod], time.Now()
	if !now.Before(t.until) { // else it is the same hang
		t.bound = min(max(firstRest, 2*t.bound), maxRest)
	}
	rest := min(restFactor*hung, t.bound)
	t.until = later(t.until, now.Add(rest))
	t.forgotten = later(t.forgotten, t.until.Add(rest))
	time.AfterFunc(t.forgotten.Sub(now), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.forgetTurns(pod)
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// callWaiting queues n of the volumes that wait for a turn. The caller holds mu.
func (p *Publisher) callWaiting(t *turns, n int) {
	for volumeID := range t.waiting {
		if n--; n < 0 {
			return
		}
		delete(t.waiting, volumeID)
		p.queue.Add(volumeID)
	}
}

// forgetTurns forgets a pod with no volume that is being reconciled or waits, and no hang of late. The
// caller holds mu.
func (p *Publisher) forgetTurns(pod types.UID) {
	t := p.turns[pod]
	if t != nil && t.running == 0 && len(t.waiting) == 0 && !time.Now().Before(t.forgotten) {
		delete(p.turns, pod)
	}
}

// overseen reconciles a volume that has a turn, and reports the result. hung says that this took so
// long that replace was called, which starts another worker.
func (v *published) overseen(ctx context.Context, replace func()) (hung bool) {
	ended, noticed := false, time.Time{} // guarded by mu
	oversight := time.AfterFunc(hangTime, func() {
		v.p.mu.Lock()
		hangs := !ended
		if hangs {
			noticed = time.Now() // not before: this process may have been stopped
			replace()
		}
		v.p.mu.Unlock()
		if hangs {
			klog.FromContext(ctx).Info("The update of a volume hangs; those of other pods go on")
		}
	})
	v.conclude(ctx, v.timed(ctx))
	oversight.Stop()
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	ended = true
	if noticed.IsZero() {
		v.p.endTurn(v.request.Pod.UID, 0)
		return false
	}
	v.p.endTurn(v.request.Pod.UID, time.Since(noticed))
	return true
}

// timed is reconcile for reconcileTime.
func (v *published) timed(ctx context.Context) reconciled {
	ctx, cancel := context.WithTimeout(ctx, reconcileTime)
	defer cancel()
	done := v.reconcile(ctx)
	if done.update != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		done.update = fmt.Errorf("%w: %w", errHangs, done.update)
	}
	return done
}
