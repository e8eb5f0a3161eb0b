package publisher

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	// hangTime is how long a reconcile may take before another worker is started. Nearly all take
	// a few milliseconds; where the machine is that busy, one more worker does no harm.
	hangTime = time.Second
	// After a reconcile that hung, its pod rests restFactor times as long, up to maxRest. So it has
	// workers, and places at the render gate, for a small part of the time.
	restFactor = 4
	maxRest    = 10 * time.Minute
)

// hang is what is known of a pod with a reconcile that hangs, or hung of late. Publisher.mu guards
// it.
type hang struct {
	// running counts those that hang.
	running int
	// until is when the pod's volumes are reconciled again.
	until time.Time
}

// startWorker starts a worker, which reconciles volumes until the queue shuts down, or one of them
// hangs.
func (p *Publisher) startWorker(ctx context.Context) {
	p.workers.Go(func() {
		for p.reconcileNext(ctx) {
		}
	})
}

// overseen reconciles a volume, and says whether that hung. If so, replace was called meanwhile,
// which starts another worker, and the caller's is to end.
//
// A container can have the writes to its own volume hang: from Linux 6.19 on the owner of a
// directory may hold a delegation, and each change of the directory waits for its end, up to
// fs.lease-break-time. So one pod's author must not hold up the volumes of others. A pod has at most
// as many reconciles that hang as there are workers, because rest keeps others from being begun.
func (v *published) overseen(ctx context.Context, replace func()) (done reconciled, hung bool) {
	p, pod := v.p, v.request.Pod.UID
	ended, noticed := false, time.Time{} // guarded by mu
	oversight := time.AfterFunc(hangTime, func() {
		p.mu.Lock()
		hangs := !ended
		if hangs {
			noticed = time.Now() // not before: this process may have been stopped
			p.hangLocked(pod)
			replace()
		}
		p.mu.Unlock()
		if hangs {
			klog.FromContext(ctx).Info("The update of a volume hangs: the volumes of its pod wait")
		}
	})
	done = v.reconcile(ctx)
	oversight.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	ended = true
	if noticed.IsZero() {
		return done, false
	}
	p.restLocked(pod, time.Since(noticed))
	return done, true
}

// hangLocked counts a reconcile of a pod that hangs. The caller holds mu.
func (p *Publisher) hangLocked(pod types.UID) {
	if p.hung[pod] == nil {
		p.hung[pod] = &hang{}
	}
	p.hung[pod].running++
}

// restLocked has a pod rest after one of its reconciles, which hung for d. The caller holds mu.
func (p *Publisher) restLocked(pod types.UID, d time.Duration) {
	h := p.hung[pod]
	h.running--
	rest := min(restFactor*d, maxRest)
	if until := time.Now().Add(rest); until.After(h.until) {
		h.until = until
	}
	time.AfterFunc(rest, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if h.running == 0 && !time.Now().Before(h.until) && p.hung[pod] == h {
			delete(p.hung, pod)
		}
	})
}

// rest returns how long no volume of a pod is to be reconciled; 0 for nearly all pods.
func (p *Publisher) rest(pod types.UID) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hung[pod]
	switch {
	case h == nil:
		return 0
	case h.running > 0:
		return hangTime // then it is asked again
	}
	return time.Until(h.until)
}
