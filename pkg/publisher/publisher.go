// Package publisher owns the life of published volumes.
//
// One function, sync, brings a volume to what it should be: a publish, a change, a resync, a restart and a withdrawal all
// end there. Only the goroutine of the volume's pod calls it, and touches the files. It never waits for the network: who
// gets an answer wakes it. So only a file system can hang, and it hangs one pod. The package must not know of gRPC, of
// flags, or of how objects reach the process.
//
// Files, from the top: publisher, restart, calls, worker, sync, wanted (what is asked for), answers and consent (what is
// known), show, spread, files and receipts (what is written, and read), status; table has the types that all of them share.
package publisher

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// endTime is how long the end of the plugin waits for the syncs that are under way.
const endTime = 5 * time.Second

// New returns a Publisher that knows of no volume yet: Restore, then Run. It fails if opts are not valid.
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
	opts.KubeletDir = filepath.Clean(opts.KubeletDir)
	p := &Publisher{
		opts:      opts,
		limits:    limitsFor(opts.MaxVolumeSize),
		newWriter: func(opts writer.Options) treeWriter { return writer.New(opts) },
		renders:   semaphore.NewWeighted(atOnce),
		kept:      semaphore.NewWeighted(maxKept),
		stopping:  make(chan struct{}),
		ended:     make(chan struct{}),
		volumes:   map[string]*vol{},
		byRef:     map[volume.Ref]map[*vol]struct{}{},
		workers:   map[types.UID]*worker{},
	}
	p.pods = pod.NewReads(p.readPod, p.podRead)
	if opts.Reviews != nil {
		var err error
		p.access, err = access.New(access.Options{Reviews: *opts.Reviews, MaxAge: opts.ResyncInterval / 2, Changed: p.objectChanged})
		if err != nil {
			return nil, err
		}
	}
	opts.Objects.Subscribe(p.objectChanged)
	return p, nil
}

// Run syncs volumes until ctx ends. It returns when its goroutines have ended, but waits at most 5 seconds for a sync that
// hangs. It is called once.
func (p *Publisher) Run(ctx context.Context) {
	p.startWorkers(ctx)
	p.running.Go(func() { p.pods.Run(ctx) })
	if p.access != nil {
		p.running.Go(func() { p.access.Run(ctx) })
	}
	for _, m := range p.orphans {
		p.running.Go(func() { p.unmountOrphan(ctx, m) })
	}
	<-ctx.Done()
	p.StopWaiting()
	p.stopWorkers()
	ended := make(chan struct{})
	go func() { p.running.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(endTime):
	}
	close(p.ended)
}

// StopWaiting ends every publish that waits for an object, with ReasonUnavailable, and lets no later one wait. It is
// idempotent.
func (p *Publisher) StopWaiting() { p.stopOnce.Do(func() { close(p.stopping) }) }

// objectChanged is told of each new answer about an object, as an account gets it or, with the zero Account, everybody. It
// does not block.
func (p *Publisher) objectChanged(account volume.ServiceAccount, ref volume.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for v := range p.byRef[ref] {
		if account != (volume.ServiceAccount{}) && account != v.want.Pod.Account() {
			continue
		}
		if v.mounted && v.changedAt.IsZero() {
			v.changedAt = now
		}
		p.wake(v, now)
	}
}

// OpensLost notes that opens of files of any volume may have been missed.
func (p *Publisher) OpensLost() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.volumes))
	p.mu.Unlock()
	for _, v := range all {
		v.receipts.inbox.lost(nil)
	}
}

// readPod reads a pod. A panic is an error: nobody else would catch it.
func (p *Publisher) readPod(ctx context.Context, asked volume.Pod) (spec *pod.Spec, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			logPanic(ctx, cause)
			err = errPanicked
		}
	}()
	return p.opts.Pods.Get(ctx, asked)
}

// podRead is told of each answer about a pod. It does not block.
func (p *Publisher) podRead(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[uid]; w != nil {
		for v := range w.all {
			p.wake(v, time.Now())
		}
	}
}
