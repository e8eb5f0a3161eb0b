package publisher

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// errManyReads is why a volume waits for its pod.
var errManyReads = errors.New("waited for reads of pods for other volumes")

// podReads reads the pods of volumes. A pod may be large and have hundreds of volumes, and all
// pods of a node may start at once: so all volumes of a pod share a read, and few run at once. A read
// keeps its place until nobody uses the pod any more, so that few are in memory.
//
// A read is repeated for which the API server asks to wait. As the node, one that is refused is
// too: the API server's authorizer may know of a pod a moment later than the kubelet, and for a
// while of none. It is safe for concurrent use and has no goroutine.
type podReads struct {
	pods Pods
	// refusalsPass says that refused reads are repeated.
	refusalsPass bool
	// repeated gives all reads that are repeated one pause, after which one of them tries.
	repeated backoff.Gate
	// places bounds the requests at once. Only who sends one has a place: a volume that waits for
	// another's read has none, else they could wait for each other.
	places *semaphore.Weighted

	mu sync.Mutex
	// running has the one read of each pod that runs or waits for its place, for all its volumes.
	running map[volume.Pod]*podRead
}

// podRead is a read of a pod. The fields below done are set before it is closed.
type podRead struct {
	done chan struct{}
	pod  *pod.Spec
	err  error
	// ended says that whoever was to read gave up.
	ended bool
	// users is how many volumes wait for the read or use its pod, and placed says that it has a place;
	// podReads.mu guards both.
	users  int
	placed bool
}

func newPodReads(pods Pods, refusalsPass bool) *podReads {
	return &podReads{
		pods:         pods,
		refusalsPass: refusalsPass,
		repeated:     backoff.Gate{Closes: func(err error) bool { return apierrors.IsForbidden(err) || asksToWait(err) }},
		places:       semaphore.NewWeighted(maxAsking),
		running:      map[volume.Pod]*podRead{},
	}
}

// asksToWait tells whether the API server says when to ask again.
func asksToWait(err error) bool {
	_, asks := apierrors.SuggestsClientDelay(err)
	return asks
}

// passes tells whether the failure of a pod's read passes soon, so that the read is repeated.
func (r *podReads) passes(err error) bool {
	return r.refusalsPass && apierrors.IsForbidden(err) || asksToWait(err)
}

// get returns a pod. At the end of ctx it returns the last answer. The caller calls done once it doesn't use
// the pod any more.
func (r *podReads) get(ctx context.Context, pod volume.Pod) (got *pod.Spec, done func(), err error) {
	got, done, err = r.read(ctx, pod, r.wait)
	var delay backoff.Delay
	for pause := delay.Next(backoff.Short, err); r.passes(err); {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), errStopping) {
				err = fail(ReasonUnavailable, "%w: %w", errStopping, err)
			}
			return nil, nil, err
		}
		// Nothing is sent during the common pause. After it, a pod that was refused often lets
		// others try: one that stays refused holds them up for a moment.
		pause = wait.Jitter(backoff.Min, 1)
		_ = r.repeated.Do(func() error {
			again, release, failure := r.read(ctx, pod, r.try)
			if errors.Is(failure, errManyReads) || failure != nil && ctx.Err() != nil {
				return failure // it is no answer
			}
			got, done, err = again, release, failure
			pause = delay.Next(backoff.Short, err)
			return err
		})
	}
	return got, done, err
}

// wait takes a place, in the order of the calls: a pod has one read.
func (r *podReads) wait(ctx context.Context) error {
	if err := r.places.Acquire(ctx, 1); err != nil {
		return fail(ReasonUnavailable, "%w: %w", errManyReads, err)
	}
	return nil
}

// try takes a place if there is one that nobody waits for.
func (r *podReads) try(context.Context) error {
	if !r.places.TryAcquire(1) {
		return errManyReads
	}
	return nil
}

// read returns a pod, with one request at a time for all its volumes. place takes the place of
// that request. The caller calls done once it doesn't use the pod any more.
func (r *podReads) read(ctx context.Context, pod volume.Pod, place func(context.Context) error) (got *pod.Spec, done func(), err error) {
	for {
		running, others := r.begin(pod)
		if !others {
			r.run(ctx, pod, running, place)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			if others {
				r.leave(running)
				return nil, nil, fail(ReasonUnavailable, "%w: %w", errManyReads, ctx.Err())
			}
		}
		switch {
		case others && running.ended:
			r.leave(running)
		case running.err != nil:
			r.leave(running)
			return nil, nil, running.err
		default:
			return running.pod, func() { r.leave(running) }, nil
		}
	}
}

// run sends the request of a read that begin returned.
func (r *podReads) run(ctx context.Context, pod volume.Pod, running *podRead, place func(context.Context) error) {
	returned := false
	defer func() {
		r.end(pod, running)
		if !returned { // something panicked
			r.leave(running)
		}
	}()
	if running.err = place(ctx); running.err != nil {
		returned = true
		return
	}
	r.mu.Lock()
	running.placed = true
	r.mu.Unlock()
	running.pod, running.err = r.pods.Get(ctx, pod)
	running.ended, returned = ctx.Err() != nil, true
}

// begin returns the read of a pod that runs, which the caller leaves, and whether it is another volume's.
func (r *podReads) begin(pod volume.Pod) (running *podRead, others bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	running, others = r.running[pod]
	if !others {
		running = &podRead{done: make(chan struct{}), ended: true} // until there is an answer
		r.running[pod] = running
	}
	running.users++
	return running, others
}

// leave ends the use of a read. The last one gives its place back.
func (r *podReads) leave(running *podRead) {
	r.mu.Lock()
	running.users--
	last := running.users == 0 && running.placed
	r.mu.Unlock()
	if last {
		r.places.Release(1)
	}
}

func (r *podReads) end(pod volume.Pod, ended *podRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, pod)
	close(ended.done)
}
