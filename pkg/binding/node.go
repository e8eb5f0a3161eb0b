package binding

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
)

// atOnce is how many volumes are parsed, resolved or rendered at the same time, which limits their memory. No system call is made
// meanwhile, so nothing that hangs can hold a place.
const atOnce = 4

// Node is what all bindings of a process share: the answers about rights, the reads of pods, and the turns of InTurn. Its fields are constant. What they refer to,
// and its methods, are safe for concurrent use.
type Node struct {
	opts Options
	// limits are those of one volume.
	limits room.Limits
	// access answers questions about rights. It is nil without Options.Reviews.
	access   *access.Access
	pods     *pod.Reads
	renders  *semaphore.Weighted
	mistakes *mistakes
	// began is when this process began. The moments of inSlot count from it.
	began time.Time
}

// NewNode returns a Node whose volumes have these limits. It calls objectChanged after each change of an object or of a right to it, and
// podChanged when a read of a pod has ended. Both are as for Objects.Subscribe: they return at once, and may be called from any goroutine. opts
// are valid and have their defaults.
func NewNode(opts Options, limits room.Limits, objectChanged func(volume.ServiceAccount, volume.Ref), podChanged func(types.UID)) (*Node, error) {
	n := &Node{
		opts: opts, limits: limits, renders: semaphore.NewWeighted(atOnce), mistakes: &mistakes{reported: map[types.UID]string{}}, began: time.Now(),
	}
	n.pods = pod.NewReads(n.readPod, podChanged)
	if opts.Reviews != nil {
		var err error
		if n.access, err = access.New(access.Options{Reviews: *opts.Reviews, MaxAge: opts.ResyncInterval / 2, Changed: objectChanged}); err != nil {
			return nil, fmt.Errorf("reviews of rights: %w", err)
		}
	}
	opts.Objects.Subscribe(objectChanged)
	return n, nil
}

// Run reads pods and asks about rights until ctx ends. It must be called once.
func (n *Node) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { n.pods.Run(ctx) })
	if n.access != nil {
		running.Go(func() { n.access.Run(ctx) })
	}
	running.Wait()
}

// readPod reads a pod. It turns a panic into an error, because no caller recovers.
func (n *Node) readPod(ctx context.Context, asked volume.Pod) (spec *pod.Spec, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			failure.LogPanic(ctx, cause)
			err = failure.ErrPanicked
		}
	}()
	return n.opts.Pods.Get(ctx, asked)
}

// InTurn calls do when a place is free. It fails if ctx ends first. do must not wait for anything.
func (n *Node) InTurn(ctx context.Context, do func()) *failure.Failure {
	if !n.renders.TryAcquire(1) { // this succeeds also if ctx has ended
		if err := n.renders.Acquire(ctx, 1); err != nil {
			return failure.Waiting(failure.ErrCrowded)
		}
	}
	defer n.renders.Release(1)
	do()
	return nil
}

// resyncSlots is how many moments of a resync interval have volumes that are due.
const resyncSlots = 60

// inSlot returns the last moment before a time at which resyncs with an interval are due. If each volume had its own moment, the process would
// wake up for each of them, which costs more than the resync itself.
func (n *Node) inSlot(at time.Time, every time.Duration) time.Time {
	return n.began.Add(at.Sub(n.began).Truncate(max(every/resyncSlots, 1)))
}

// maxMistakes limits the objects of which mistakes remembers something.
const maxMistakes = 1000

// mistakes has the last reported annotation of each object, so that each is reported once for a node and not for each pod. It is safe for
// concurrent use.
type mistakes struct {
	mu       sync.Mutex
	reported map[types.UID]string
}

// isNews reports whether an annotation of an object must be reported. It then counts as reported. "" means that the object has no mistake any
// more, so that the same one is news later.
func (m *mistakes) isNews(object types.UID, annotation string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case annotation == "":
		delete(m.reported, object)
		return false
	case m.reported[object] == annotation:
		return false
	}
	if len(m.reported) == maxMistakes {
		clear(m.reported)
	}
	m.reported[object] = annotation
	return true
}
