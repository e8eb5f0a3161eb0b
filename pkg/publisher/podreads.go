package publisher

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/podspec"
	"github.com/refvol/refvol/pkg/volume"
)

// podReads reads the pods of new volumes as the node. The API server's authorizer may know of a
// pod a moment later than the kubelet, and for a while of none: so a read that is refused is
// repeated. It is safe for concurrent use and has no goroutine.
type podReads struct {
	pods     Pods
	stopping <-chan struct{}
	// refused gives all refused reads one pause, after which one of them tries.
	refused backoff.Gate
	// places bounds the reads that are repeated at once.
	places chan struct{}

	mu sync.Mutex
	// running has the one read of each pod that runs, for all its volumes.
	running map[volume.Pod]*podRead
}

// podRead is a read of a pod. The fields below done are set before it is closed.
type podRead struct {
	done chan struct{}
	pod  *podspec.Pod
	err  error
	// ended says that whoever has read gave up.
	ended bool
}

func newPodReads(pods Pods, stopping <-chan struct{}) *podReads {
	return &podReads{
		pods:     pods,
		stopping: stopping,
		refused:  backoff.Gate{Closes: apierrors.IsForbidden},
		places:   make(chan struct{}, maxAsking),
		running:  map[volume.Pod]*podRead{},
	}
}

// get returns a pod. If that is refused until the deadline, it returns the refusal.
func (r *podReads) get(ctx context.Context, pod volume.Pod, deadline time.Time) (*podspec.Pod, error) {
	until, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	got, err := r.read(ctx, pod)
	var refused backoff.Delay
	for pause := refused.Next(backoff.Short, err); apierrors.IsForbidden(err); {
		select {
		case <-time.After(pause):
		case <-r.stopping:
			return nil, fail(ReasonUnavailable, "%w: %w", errStopping, err)
		case <-until.Done():
			return nil, err
		}
		// Nothing is sent during the common pause. After it, a pod that was refused often lets
		// others try: one that stays refused holds them up for a moment.
		pause = wait.Jitter(backoff.Min, 1)
		r.again(func() error {
			got, err = r.read(ctx, pod)
			pause = refused.Next(backoff.Short, err)
			return err
		})
	}
	return got, err
}

// again calls read, unless it is not the time for that or too many run.
func (r *podReads) again(read func() error) {
	select {
	case r.places <- struct{}{}:
	default:
		return
	}
	defer func() { <-r.places }()
	_ = r.refused.Do(read)
}

// read returns a pod, with one request at a time for all its volumes.
func (r *podReads) read(ctx context.Context, pod volume.Pod) (*podspec.Pod, error) {
	for {
		running, others := r.begin(pod)
		if !others {
			return r.run(ctx, pod, running)
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if !running.ended {
			return running.pod, running.err
		}
	}
}

// run sends the request of a read that begin returned.
func (r *podReads) run(ctx context.Context, pod volume.Pod, running *podRead) (*podspec.Pod, error) {
	defer r.end(pod, running)
	running.pod, running.err = r.pods.Get(ctx, pod)
	running.ended = ctx.Err() != nil
	return running.pod, running.err
}

// begin returns the read of a pod that runs, and whether it is another volume's.
func (r *podReads) begin(pod volume.Pod) (running *podRead, others bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	running, others = r.running[pod]
	if !others {
		running = &podRead{done: make(chan struct{}), ended: true} // also if it panics
		r.running[pod] = running
	}
	return running, others
}

func (r *podReads) end(pod volume.Pod, ended *podRead) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, pod)
	close(ended.done)
}
