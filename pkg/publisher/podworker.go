package publisher

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// podWorker serialises what is written to the volumes of one pod, and reconciles them one after
// the other, as the kubelet has one worker per pod. A write can hang: from Linux 6.19 on a
// container may hold a delegation on a directory of its volume. That holds up the volumes of its pod
// and nothing else.
//
// Whoever writes to one of the volumes holds the pod's lock: the worker's goroutine, a publish, an
// unpublish. Publisher.mu guards the fields. The goroutine lives while a volume is due; a timer
// starts it for one that is due later.
type podWorker struct {
	podLock
	uid types.UID
	// users is how many volumes have the worker. It goes with the last of them.
	users int
	// due says when volumes are to be reconciled next.
	due map[*published]time.Time
	// running says that the goroutine is there; timer else starts it at next, zero for never.
	running bool
	next    time.Time
	timer   *time.Timer
}

// podLock is a lock whose wait a context can end. Who waits longest gets it next. It is a channel
// with room for one.
type podLock chan struct{}

// lock takes the lock, or returns why ctx ended first.
func (l podLock) lock(ctx context.Context) error {
	select {
	case l <- struct{}{}:
		return nil // also if ctx has ended
	default:
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l podLock) unlock() { <-l }

// workers are those of the pods that have volumes. Publisher.mu guards the map.
type workers struct {
	pods map[types.UID]*podWorker
	// run starts a worker's goroutine; nil before Run, and after its context has ended.
	run func(*podWorker)
	// running counts the goroutines.
	running sync.WaitGroup
}

// holdWorker returns the worker of a pod. The caller releases it.
func (p *Publisher) holdWorker(pod types.UID) *podWorker {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers.pods[pod]
	if w == nil {
		w = &podWorker{podLock: make(podLock, 1), uid: pod, due: map[*published]time.Time{}}
		p.workers.pods[pod] = w
	}
	w.users++
	return w
}

// releaseWorker undoes holdWorker; nil is none.
func (p *Publisher) releaseWorker(w *podWorker) {
	if w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.users--; w.users == 0 {
		delete(p.workers.pods, w.uid)
		p.rest(w)
	}
}

// requeue has a volume that follows its objects reconciled at a time, or earlier.
func (p *Publisher) requeue(v *published, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requeueLocked(v, at)
}

// requeueLocked is requeue for a caller that holds mu.
func (p *Publisher) requeueLocked(v *published, at time.Time) {
	if !v.follows() {
		return
	}
	w := v.worker
	if due, queued := w.due[v]; queued && !at.Before(due) {
		return
	}
	w.due[v] = at
	if !w.running && (w.next.IsZero() || at.Before(w.next)) {
		p.wakeAt(w, at)
	}
}

// dequeue undoes requeue. The caller holds mu.
func (p *Publisher) dequeue(v *published) { delete(v.worker.due, v) }

// wakeAt has the goroutine of a worker run at a time. The caller holds mu.
func (p *Publisher) wakeAt(w *podWorker, at time.Time) {
	p.rest(w)
	if p.workers.run == nil {
		return
	}
	wait := time.Until(at)
	if wait <= 0 {
		w.running = true
		p.workers.run(w)
		return
	}
	w.next = at
	w.timer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.next.Equal(at) && p.workers.run != nil { // else it is another timer's turn
			w.next, w.running = time.Time{}, true
			p.workers.run(w)
		}
	})
}

// rest ends a worker's timer. The caller holds mu.
func (p *Publisher) rest(w *podWorker) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.next, w.timer = time.Time{}, nil
}

// startWorkers starts the goroutines of the workers, also of later ones, until stopWorkers.
func (p *Publisher) startWorkers(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers.run = func(w *podWorker) { p.workers.running.Go(func() { p.work(ctx, w) }) }
	for _, w := range p.workers.pods {
		w.running = true
		p.workers.run(w)
	}
}

// endTime is how long the end of the plugin waits for the reconciles that are under way.
const endTime = 5 * time.Second

// stopWorkers returns when the goroutines of the workers have ended, but waits at most endTime for those
// that hang. The context of startWorkers has ended.
func (p *Publisher) stopWorkers() {
	p.mu.Lock()
	p.workers.run = nil
	for _, w := range p.workers.pods {
		p.rest(w)
	}
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.workers.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(endTime):
	}
}

// work reconciles a pod's volumes, the one that is due first before the others, until none is due.
func (p *Publisher) work(ctx context.Context, w *podWorker) {
	for v := p.nextDue(ctx, w); v != nil; v = p.nextDue(ctx, w) {
		if w.lock(ctx) != nil {
			continue // nextDue ends the work
		}
		ctx := v.logged(ctx)
		v.conclude(ctx, v.reconcile(ctx))
		w.unlock()
	}
}

// nextDue takes the volume that is due first. It returns nil if none is due; the worker's goroutine then ends.
func (p *Publisher) nextDue(ctx context.Context, w *podWorker) *published {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first *published
	var at time.Time
	for v, due := range w.due {
		if first == nil || due.Before(at) {
			first, at = v, due
		}
	}
	if first != nil && !at.After(time.Now()) && ctx.Err() == nil {
		delete(w.due, first)
		return first
	}
	w.running = false
	if first != nil && ctx.Err() == nil {
		p.wakeAt(w, at)
	}
	return nil
}
