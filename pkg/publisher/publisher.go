// Package publisher owns the life of published volumes. It must not know about gRPC, about flags, or about how objects reach the process.
//
// One function, reconcile, brings a volume to its wanted state. A publish, a change, a resync, a restart and a withdrawal all use it. Only
// the goroutine of the volume's pod calls it and touches the files. It never waits for the network: whoever receives an answer wakes it. So
// only a file system can hang, and it hangs only one pod.
//
// Each part owns its state, and no other part reads or changes it: the entry in the table (shared by the calls and the worker), the binding
// (what is asked for), the files, the receipts, the spread and the report.
//
// A source file uses only files below it. From the top: run, restart, calls and publisher (the public functions), reconcile, show and
// volume (the steps), worker, and the parts: answers, binding and consent, files and generations, receipts, spread, table, report, failure.
package publisher

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Publisher publishes volumes and keeps them current. All methods are safe for concurrent use, except that Restore and Run are called once,
// in that order.
//
// Run starts all its goroutines: one for each pod while a volume of it is due, and those that read pods and ask about rights. They end with
// Run's context. A reconcile that hangs ends only with its system call. All fields are constant after Restore.
type Publisher struct {
	*shared
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
	if opts.Events == nil {
		opts.Events = noEvents{}
	}
	if opts.Observer == nil {
		opts.Observer = noObserver{}
	}
	if opts.NewWriter == nil {
		opts.NewWriter = func(opts writer.Options) Writer { return writer.New(opts) }
	}
	opts.KubeletDir = filepath.Clean(opts.KubeletDir)
	space := room.New(opts.MaxVolumeSize, opts.MaxTotalSize)
	p := &Publisher{
		shared: &shared{
			opts:    opts,
			limits:  space.Limits(),
			renders: semaphore.NewWeighted(atOnce),
			kept:    semaphore.NewWeighted(maxKept),
			began:   time.Now(),
		},
		stopping: make(chan struct{}),
		ended:    make(chan struct{}),
	}
	p.table = &table{
		kubeletDir: opts.KubeletDir,
		room:       space,
		logLimit:   opts.LogLimit,
		newVolume:  func(e *entry) reconciler { return newVolume(p.shared, e) },
		entries:    map[string]*entry{},
		byRef:      map[volume.Ref]map[*entry]struct{}{},
		workers:    map[types.UID]*worker{},
	}
	p.pods = pod.NewReads(p.readPod, p.table.podChanged)
	if opts.Reviews != nil {
		var err error
		p.access, err = access.New(access.Options{Reviews: *opts.Reviews, MaxAge: opts.ResyncInterval / 2, Changed: p.table.objectChanged})
		if err != nil {
			return nil, err
		}
	}
	opts.Objects.Subscribe(p.table.objectChanged)
	return p, nil
}

// StopWaiting ends every publish that waits, with ReasonUnavailable, and later ones don't wait. It is idempotent.
func (p *Publisher) StopWaiting() { p.stopOnce.Do(func() { close(p.stopping) }) }

// OpensLost notes that opens of files in any volume may have been missed.
func (p *Publisher) OpensLost() {
	for _, e := range p.table.all() {
		e.vol.opensLost()
	}
}

// readPod reads a pod. It turns a panic into an error, because no caller recovers.
func (p *Publisher) readPod(ctx context.Context, asked volume.Pod) (spec *pod.Spec, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, cause)
			err = errPanicked
		}
	}()
	return p.opts.Pods.Get(ctx, asked)
}
