// Package publisher owns the life of published volumes: publish, unpublish,
// reconcile after a change, resync, and restore after a restart.
//
// There is one way to write a volume: look up its objects, render them, and write the files
// through a handle on its mount. A publish writes to a mount that nobody sees yet. Everything
// else writes to the visible one. The package must not know of gRPC, of flags, or of how objects
// reach the process.
//
// A volume is in one table, with one state. One worker per pod reconciles the live volumes of the pod.
package publisher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// Publisher publishes volumes and keeps them current. All methods are safe for
// concurrent use.
//
// mu guards the maps and the fields of a published that say so, and is never held over a system call,
// or over a lock of another package. Who waits for mu may hold the lock of a pod, never the other way round. The
// goroutines are those of Run: the pods' workers, the take-over of restored volumes and the questions of access. They
// end with its context, but a worker whose reconcile hangs ends with that. A CSI call runs in its caller's
// goroutine.
type Publisher struct {
	opts   Options
	limits limits
	// newWriter makes the writer of one volume.
	newWriter func(opts writer.Options) treeWriter
	// retries says how long after a failure a volume is reconciled again.
	retries workqueue.TypedRateLimiter[*published]
	// stopping is closed when waiting publishes are to give up.
	stopping chan struct{}
	stopOnce sync.Once
	// access answers for Reviews; nil without them.
	access *access.Access
	pods   *podReads
	// renders bounds the memory of all renders together.
	renders renderMemory
	// kept counts the handles that are kept.
	kept *semaphore.Weighted

	mu      sync.Mutex
	workers workers
	// volumes has all volumes by id, and those that a call is about.
	volumes map[string]*published
	byRef   map[volume.Ref]map[*published]struct{}
	// listed says that the mount table was read; it is Restore's and then Run's.
	listed bool
	// used is the bytes that are counted for all volumes.
	used int64
	// failures holds those publishes that failed of late and were told as events.
	failures map[string]failure
}

// Retries of a failed write start at retryMin and double up to retryMax, so that a
// volume recovers soon after the cause of the failure has gone.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 5 * time.Second
	// maxAsking is how many pods the API server is asked for at once.
	maxAsking = 16
)

// New returns a Publisher that knows of no volume yet; Restore finds those of an
// earlier process. It fails if opts are not valid. Close the Publisher after Run has
// returned.
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
		retries:   workqueue.NewTypedItemExponentialFailureRateLimiter[*published](retryMin, retryMax),
		stopping:  make(chan struct{}),
		renders:   newRenderMemory(),
		kept:      semaphore.NewWeighted(maxKept),
		workers:   workers{pods: map[types.UID]*podWorker{}},
		volumes:   map[string]*published{},
		byRef:     map[volume.Ref]map[*published]struct{}{},
		failures:  map[string]failure{},
	}
	p.pods = newPodReads(opts.Pods, opts.NodeRights)
	if opts.Reviews != nil {
		var err error
		p.access, err = access.New(access.Options{Reviews: *opts.Reviews, MaxAge: opts.ResyncInterval / 2, Changed: p.changed})
		if err != nil {
			return nil, err
		}
	}
	opts.Objects.Subscribe(p.changed)
	return p, nil
}

// Run takes over what Restore has found, and reconciles until ctx ends. It returns
// when its goroutines have, but waits at most endTime for reconciles. It is called once.
func (p *Publisher) Run(ctx context.Context) {
	var running sync.WaitGroup
	p.startWorkers(ctx)
	if p.access != nil {
		running.Go(func() { p.access.Run(ctx) })
	}
	running.Go(func() { p.takeOverFound(ctx) })
	<-ctx.Done()
	p.StopWaiting()
	running.Wait()
	p.stopWorkers()
}

// StopWaiting ends every publish that waits for an object, with ReasonUnavailable,
// and lets no later one wait. It is idempotent.
func (p *Publisher) StopWaiting() {
	p.stopOnce.Do(func() { close(p.stopping) })
}

// Close releases what Run and calls have used.
func (p *Publisher) Close() {
	p.StopWaiting()
	if p.access != nil {
		p.access.Close()
	}
	p.giveBackAll()
}

// published is one volume, as long as it has one state after the other: what comes back later is another one.
type published struct {
	p *Publisher
	// What the publish asked for but its token, and the objects that this names; constant. Of a volume that was
	// found or is frozen only id, target and pod are known, and Publisher.mu guards the pod.
	request Request
	spec    *volume.Spec
	// resolved is spec with what the pod's own spec adds to it, and leftOut names what that sets and
	// a volume can't know; constant.
	resolved *volume.Spec
	leftOut  string
	refs     []volume.Ref
	// consent is the objects that the pod needs a right to; constant.
	consent map[volume.Ref]bool
	// consents are the same, with where the spec first names each; constant.
	consents []volume.Use
	// registered are the objects that are read; as contents.
	registered []volume.Ref
	// since is when this process began with the volume; constant.
	since time.Time
	// worker is that of the pod, whose lock guards contents. The volume holds it until it is removed; constant.
	worker *podWorker
	// deadline is when the publish gives up waiting. It is the publish's own.
	deadline time.Time
	// wake tells a publish that waits, or is about to render, of a change; it has
	// room for one.
	wake chan struct{}

	// Publisher.mu guards what follows, up to contents, once the volume is in the table.
	//
	// reason says why a frozen volume is.
	state  state
	reason string
	// call is the one that is under way.
	call *call
	// released says that worker is released.
	released bool
	// token is the last one that a request brought, and proven says that the pod is of the account that it claims.
	token  volume.Token
	proven bool
	// size is what its file system holds, which Publisher.used has.
	size int64
	// resyncAt is when the volume is to be reconciled though nothing has changed, with its
	// objects refreshed.
	resyncAt time.Time
	// queuedAt is when the first change came that no update has taken up; zero for none.
	queuedAt time.Time

	// contents is what its files show. The lock of the pod guards it.
	contents contents

	condition condition
}

// notify tells a publish that an object of its volume has changed.
func (v *published) notify() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// activate makes a volume live: it is reconciled after changes, also of those while it was
// being published.
//
// A pinned volume is never rewritten: it lets its objects go instead, so that nothing
// is watched for it.
func (p *Publisher) activate(v *published) {
	if v.spec.Pinned() {
		v.letGo()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	v.state = live
	if !v.follows() {
		return
	}
	// Each volume has its own moment of the interval.
	v.resyncAt = time.Now().Add(p.opts.ResyncInterval + rand.N(p.opts.ResyncInterval))
	p.requeueLocked(v, v.resyncAt)
	select {
	case <-v.wake:
		p.requeueLocked(v, time.Now())
	default:
	}
}

// resyncAccount makes a resync due for the active volumes of a service account's pods.
func (p *Publisher) resyncAccount(account volume.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, v := range p.volumes {
		if v.follows() && v.request.Pod.Account() == account {
			v.resyncAt = now
			p.requeueLocked(v, now)
		}
	}
}
