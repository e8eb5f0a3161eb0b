package publisher

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/room"
)

// atOnce is how many volumes are parsed, resolved or rendered at the same time, which limits their memory. No system call is made
// meanwhile, so nothing that hangs can hold a place.
const atOnce = 4

// node is what all volumes of a process share, apart from the table. Its fields are constant. What they refer to is safe for concurrent
// use.
type node struct {
	opts Options
	// limits are those of one volume.
	limits room.Limits
	// access answers questions about rights. It is nil without Options.Reviews.
	access *access.Access
	pods   *pod.Reads
	// renders limits the calls of inTurn. kept limits the kept handles.
	renders, kept *semaphore.Weighted
	mistakes      *mistakes
	// began is when this process began. The moments of inSlot count from it.
	began time.Time
}

// resyncSlots is how many moments of a resync interval have volumes that are due.
const resyncSlots = 60

// inSlot returns the last moment before a time at which resyncs with an interval are due. If each volume had its own moment, the process would wake up for
// each of them, which costs more than the resync itself.
func (n *node) inSlot(at time.Time, every time.Duration) time.Time {
	return n.began.Add(at.Sub(n.began).Truncate(max(every/resyncSlots, 1)))
}

// inTurn calls do when a place is free. It fails if ctx ends first.
func (n *node) inTurn(ctx context.Context, do func()) *failure {
	if !n.renders.TryAcquire(1) { // this succeeds also if ctx has ended
		if err := n.renders.Acquire(ctx, 1); err != nil {
			return waiting(errCrowded)
		}
	}
	defer n.renders.Release(1)
	do()
	return nil
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
