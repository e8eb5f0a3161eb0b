package publisher

import (
	"golang.org/x/sync/semaphore"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/room"
)

// node is what all volumes of a process share, apart from the table. Its fields are constant. What they refer to is safe for concurrent
// use.
type node struct {
	opts Options
	// bindings is what the bindings of all volumes share.
	bindings *binding.Node
	// limits are those of one volume.
	limits room.Limits
	// kept limits the kept handles.
	kept *semaphore.Weighted
}
