package pod

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/question"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrPending says that a pod has not been read yet.
var ErrPending = errors.New("the pod's spec is not read yet")

const (
	// readsAtOnce limits the reads of pods in flight, because a pod may need megabytes. ordinaryReads limits those of them for which no
	// publish waits.
	readsAtOnce   = 16
	ordinaryReads = 12
	// urgentPause is the longest pause, before jitter, between two reads of a pod for which a publish waits.
	urgentPause = 5 * time.Second
)

// Reads reads pods in the background: few at the same time, those for which a publish waits first, and each pod once for all its volumes. A
// failed read is repeated, with growing pauses, while a volume waits. It is safe for concurrent use. mu guards the fields below it and
// those of read. Each read has a goroutine; Run ends them.
type Reads struct {
	get     func(ctx context.Context, pod volume.Pod) (*Spec, error)
	changed func(uid types.UID)
	// all has a place for each read. ordinary has a place for each read for which no publish waits.
	all, ordinary *semaphore.Weighted
	running       sync.WaitGroup

	mu sync.Mutex
	// start starts the goroutine of a read. It is nil while Run is not running.
	start func(*read)
	// reads has the reads of pods for which volumes wait. The keys have no service account.
	reads map[volume.Pod]*read
}

// read is the read of one pod, for the volumes that wait for it. isUrgent means that a publish waits.
type read struct {
	question.Question[answer]
	pod      volume.Pod
	waiters  map[string]struct{}
	isUrgent bool
}

// answer is a pod, or the error that says that there is none.
type answer struct {
	spec *Spec
	err  error
}

// NewReads returns a Reads that uses get. changed is called after each read, successful or not, and must not block.
func NewReads(get func(ctx context.Context, pod volume.Pod) (*Spec, error), changed func(uid types.UID)) *Reads {
	return &Reads{get: get, changed: changed, all: semaphore.NewWeighted(readsAtOnce), ordinary: semaphore.NewWeighted(ordinaryReads), reads: map[volume.Pod]*read{}}
}

// Run sends reads until ctx ends.
func (r *Reads) Run(ctx context.Context) {
	r.mu.Lock()
	r.start = func(x *read) {
		urgent := x.isUrgent
		ctx := x.Begin(ctx, requests.Meta{Urgent: urgent, For: requests.For(x.pod.UID)})
		r.running.Go(func() {
			spec, err := r.send(ctx, x.pod, urgent)
			r.recordResult(x, spec, err)
			r.changed(x.pod.UID)
		})
	}
	for _, x := range r.reads {
		r.start(x)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.start = nil
	r.mu.Unlock()
	r.running.Wait()
}

func (r *Reads) send(ctx context.Context, pod volume.Pod, urgent bool) (*Spec, error) {
	if !urgent {
		if err := r.ordinary.Acquire(ctx, 1); err != nil {
			return nil, err
		}
		defer r.ordinary.Release(1)
	}
	if err := r.all.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.all.Release(1)
	return r.get(ctx, pod)
}

// Get returns a pod for a volume, or the NotFound API error of Reader.Get, when the pod has been read. Until then it returns ErrPending or
// the error of the last try, and a read is scheduled. urgent means that a publish waits.
func (r *Reads) Get(pod volume.Pod, volumeID string, urgent bool) (*Spec, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pod.ServiceAccount = "" // not all volumes know the account
	x := r.reads[pod]
	if x == nil {
		pauses := wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 10, Cap: 30 * time.Second}
		x = &read{Question: question.New[answer](pauses), pod: pod, waiters: map[string]struct{}{}}
		r.reads[pod] = x
	}
	if last := x.Last(); last.IsKnown() {
		r.removeWaiter(x, volumeID)
		return last.Value.spec, last.Value.err
	}
	x.waiters[volumeID] = struct{}{}
	if urgent && !x.isUrgent {
		x.EndPause() // it may be longer than urgentPause
	}
	x.isUrgent = x.isUrgent || urgent
	if r.start != nil && x.IsDue() {
		r.start(x)
	}
	return nil, cmp.Or(x.Err(), ErrPending)
}

// Forget removes a volume from all waiters.
func (r *Reads) Forget(volumeID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.reads {
		r.removeWaiter(x, volumeID)
	}
}

// removeWaiter removes a volume from the waiters of a read, and forgets a read without waiters. The caller holds mu.
func (r *Reads) removeWaiter(x *read, volumeID string) {
	delete(x.waiters, volumeID)
	if len(x.waiters) == 0 {
		delete(r.reads, x.pod)
		x.Cancel()
	}
}

// recordResult stores the result of a read. A failed read is repeated after a pause if a volume still waits then.
func (r *Reads) recordResult(x *read, spec *Spec, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isAbsent := apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err); err == nil || isAbsent {
		x.Answer(answer{spec, err})
		return
	}
	most := time.Duration(0)
	if x.isUrgent {
		most = wait.Jitter(urgentPause, 1)
	}
	time.AfterFunc(x.Fail(err, most), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.reads[x.pod] == x && r.start != nil && x.IsDue() { // a later try has its own timer
			r.start(x)
		}
	})
}
