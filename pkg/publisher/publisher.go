// Package publisher owns the life of published volumes. It must not know about gRPC, about flags, or about how objects reach the process.
//
// One function, reconcile, brings a volume to its wanted state. A publish, a change, a resync, a restart and a withdrawal all use it. Only
// the goroutine of the volume's pod calls it and touches the files. It never waits for the network: whoever receives an answer wakes it. So
// only a file system can hang, and it hangs only one pod.
//
// Each part owns its state, and no other part reads or changes it: the binding (what is asked for, a package of its own), the files, the
// receipts, the decision what waits, and the report. The table has what the calls want and what each volume tells; a volume must not know it.
//
// A source file uses only types of files below it. From the top: run, restart, status, stats and calls (the public functions), publisher, worker
// with table, reconcile, show, stage with set, render and volume (the steps), and the parts: files with generations, and report.
package publisher

import (
	"fmt"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/writer"
)

// Publisher publishes volumes and keeps them current. All methods are safe for concurrent use, except that Restore and Run are called once,
// in that order.
//
// Run starts all its goroutines: one for each pod while a volume of it is due, and those that read pods and ask about rights. They end with
// Run's context. A reconcile that hangs ends only with its system call. All fields are constant after Restore.
type Publisher struct {
	*node
	table *table
	// stopping is closed when publishes must not wait any more. ended is closed when Run has stopped the workers.
	stopping, ended chan struct{}
	stopOnce        sync.Once
	running         sync.WaitGroup
	// orphans are mounted volumes whose pods are gone. Restore finds them, and Run unmounts them.
	orphans []mount.Mounted
}

// New returns a Publisher without volumes. Call Restore and then Run. It fails if opts are not valid.
func New(opts Options) (*Publisher, error) {
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("publisher options: %w", err)
	}
	if opts.Observer == nil {
		opts.Observer = noObserver{}
	}
	if opts.NewWriter == nil {
		opts.NewWriter = func(opts writer.Options) Writer { return writer.New(opts) }
	}
	opts.Default()
	space := room.New(opts.MaxVolumeSize, opts.MaxTotalSize)
	n := &node{opts: opts, limits: space.Limits(), kept: semaphore.NewWeighted(maxKept)}
	t := newTable(n, space)
	var err error
	if n.bindings, err = binding.NewNode(opts.Options, n.limits, t.objectChanged, t.podChanged); err != nil {
		return nil, fmt.Errorf("publisher options: %w", err)
	}
	return &Publisher{node: n, table: t, stopping: make(chan struct{}), ended: make(chan struct{})}, nil
}

// StopWaiting ends every publish that waits, with ReasonUnavailable, and later ones don't wait. It is idempotent.
func (p *Publisher) StopWaiting() { p.stopOnce.Do(func() { close(p.stopping) }) }

// OpensLost notes that opens of files in any volume may have been missed.
func (p *Publisher) OpensLost() {
	for _, e := range p.table.all() {
		e.vol.opensLost()
	}
}
