package pod

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrPending reports that a pod is not read yet.
var ErrPending = errors.New("the pod's spec is not read yet")

const (
	// readsAtOnce is how many reads there are at once, after one that was answered; a pod may take megabytes.
	readsAtOnce = 16
	// urgentPause is the longest pause between two reads of a pod for which a publish waits.
	urgentPause = 5 * time.Second
)

// Reads reads pods for volumes that go on meanwhile: few at once, those for which a publish waits first, and one of each pod
// for all its volumes. A read that fails is repeated, later each time, while a volume waits. It is safe for concurrent use.
// mu guards the fields below it and those of read. Each read has a goroutine; Run ends them.
type Reads struct {
	get     func(ctx context.Context, pod volume.Pod) (*Spec, error)
	changed func(uid types.UID)
	running sync.WaitGroup

	mu sync.Mutex
	// send starts the goroutine of a read; nil while Run does not run.
	send func(*read)
	// reads are those of pods whose volumes wait. The keys have no service account.
	reads map[volume.Pod]*read
	// queue has those that are to be sent, sent is how many are, and works says that the last one was answered.
	queue []*read
	sent  int
	works bool
}

// read is the read of a pod.
type read struct {
	pod     volume.Pod
	waiters map[string]struct{}
	urgent  bool
	// spec or err is the answer, once there is one. Until answered, err is why the last try failed.
	answered bool
	spec     *Spec
	err      error
	// retryAt is when it may be sent again.
	retries wait.Backoff
	retryAt time.Time
}

// NewReads returns a Reads that uses get. changed is called after each answer, and must not block.
func NewReads(get func(ctx context.Context, pod volume.Pod) (*Spec, error), changed func(uid types.UID)) *Reads {
	return &Reads{get: get, changed: changed, reads: map[volume.Pod]*read{}}
}

// Run sends reads until ctx ends.
func (r *Reads) Run(ctx context.Context) {
	r.mu.Lock()
	r.send = func(x *read) {
		ctx := requests.With(ctx, requests.Meta{Urgent: x.urgent})
		r.running.Go(func() {
			spec, err := r.get(ctx, x.pod)
			r.answer(x, spec, err)
			r.changed(x.pod.UID)
		})
	}
	r.pump()
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.send = nil
	r.mu.Unlock()
	r.running.Wait()
}

// Get returns a pod for a volume, or the NotFound API error of Reader.Get, once it was read. Until then it returns ErrPending,
// or why the last try failed, and has the pod read; urgent says that a publish waits.
func (r *Reads) Get(pod volume.Pod, volumeID string, urgent bool) (*Spec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod.ServiceAccount = "" // not all volumes know it
	x := r.reads[pod]
	if x == nil {
		x = &read{pod: pod, waiters: map[string]struct{}{}, retries: wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second}}
		r.reads[pod] = x
		r.queue = append(r.queue, x)
	}
	if x.answered {
		r.leave(x, volumeID)
		return x.spec, x.err
	}
	x.waiters[volumeID] = struct{}{}
	x.urgent = x.urgent || urgent
	r.pump()
	return nil, cmp.Or(x.err, ErrPending)
}

// Leave has a volume wait no more.
func (r *Reads) Leave(volumeID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.reads {
		r.leave(x, volumeID)
	}
}

// leave forgets a read for which no volume waits.
func (r *Reads) leave(x *read, volumeID string) {
	delete(x.waiters, volumeID)
	if len(x.waiters) == 0 {
		delete(r.reads, x.pod)
		r.queue = slices.DeleteFunc(r.queue, func(other *read) bool { return other == x })
	}
}

// pump sends what may be sent. The caller holds mu.
func (r *Reads) pump() {
	most := 1
	if r.works {
		most = readsAtOnce
	}
	for r.sent < most && r.send != nil {
		x := r.next()
		if x == nil {
			return
		}
		r.sent++
		r.send(x)
	}
}

// next takes a read out of the queue that may be sent, an urgent one first. The caller holds mu.
func (r *Reads) next() *read {
	now, at := time.Now(), -1
	for i, x := range r.queue {
		if now.Before(x.retryAt) {
			continue
		}
		if at < 0 || x.urgent && !r.queue[at].urgent {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	x := r.queue[at]
	r.queue = slices.Delete(r.queue, at, at+1)
	return x
}

// answer takes in the end of a read.
func (r *Reads) answer(x *read, spec *Spec, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent--
	noPod := apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err)
	r.works = err == nil || noPod || apierrors.IsForbidden(err)
	x.spec, x.err = spec, err
	if x.answered = err == nil || noPod; !x.answered && len(x.waiters) > 0 && r.send != nil {
		pause := x.retries.Step()
		if x.urgent {
			pause = min(pause, wait.Jitter(urgentPause, 1))
		}
		x.retryAt = time.Now().Add(pause)
		r.queue = append(r.queue, x)
		time.AfterFunc(pause, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.pump()
		})
	}
	r.pump()
}
