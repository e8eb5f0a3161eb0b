package publisher

import (
	"context"
	"os"

	"golang.org/x/sync/semaphore"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// atOnce is how many volumes are parsed, resolved or rendered at once, which bounds the memory of that. A place is held over
// no system call: what may hang holds none that others wait for.
const atOnce = 4

// shared is what all volumes of a process share beside the table. Its fields are constant, and what they lead to is safe for
// concurrent use.
type shared struct {
	opts   Options
	limits limits
	// newWriter makes the writer of one volume.
	newWriter func(opts writer.Options) treeWriter
	// access answers for Reviews; nil without them.
	access *access.Access
	pods   *pod.Reads
	// renders counts the places of inTurn, and kept the handles that are kept.
	renders, kept *semaphore.Weighted
}

// inTurn calls do when there is a place.
func (s *shared) inTurn(ctx context.Context, do func()) *failure {
	if !s.renders.TryAcquire(1) { // also of a ctx that has ended
		if err := s.renders.Acquire(ctx, 1); err != nil {
			return crowded()
		}
	}
	defer s.renders.Release(1)
	do()
	return nil
}

// fits returns why a volume may not hold so many bytes beside what the pod's other volumes and the node's hold, nil if it may.
func (s *shared) fits(e *entry, takes int64) *failure {
	share := max(s.opts.MaxTotalSize/podShare, s.opts.MaxVolumeSize)
	switch pod, node := e.held(); {
	case pod+takes > share:
		return full(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the pod's other volumes %d, together more than %d (a pod's share: an eighth of --max-total-size, but at least --max-volume-size)", takes, pod, share)
	case node+takes > s.opts.MaxTotalSize:
		return full(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)", takes, node, s.opts.MaxTotalSize)
	}
	return nil
}

// treeWriter makes a directory show a tree; *writer.Writer is one.
type treeWriter interface {
	Write(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Result, error)
	// Compare says whether it does so already, but for the record, and what differs.
	Compare(ctx context.Context, dir *os.Root, tree *volume.Payload) (writer.Comparison, error)
	// Withdraw takes away the files that name one of the objects.
	Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (writer.Result, error)
}
