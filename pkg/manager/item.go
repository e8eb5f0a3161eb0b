package manager

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

// item is one referenced object: what is known of it, who waits for it, and its
// reflector, which runs while the object is worth watching.
//
// At most one goroutine at a time, that of the present run, drives the reflector,
// which calls the methods of reflect.go and of requests; each run waits for the one
// before. mu guards everything below it; the subscriber is called without it.
type item struct {
	ref       volume.Ref
	source    *source
	changed   func(volume.Ref)
	running   *sync.WaitGroup
	logger    klog.Logger // the reflector's
	failures  *failureLog
	reflector *cache.Reflector
	requests  *requests

	// refs counts the references by the UID of the pod; watchStore.mu guards it.
	refs map[types.UID]int

	mu sync.Mutex
	// run is the reflector's present life; nil while it is stopped.
	run *run
	// ended is closed when the last run that was started has ended.
	ended <-chan struct{}
	// closed is what reads return once the item is of no use any more; else nil.
	closed error

	// synced tells that object is what the API server holds, nil if nothing.
	synced bool
	object *volume.Object
	// ready is closed at the moment of sync, or of close.
	ready chan struct{}
	// failure is the last failure to list or watch since the last sync; failedAt
	// outlives the sync.
	failure  error
	failedAt time.Time
	lastRead time.Time

	// floor is the newest resourceVersion seen, of the object or of a list.
	// Anything older is a stale answer.
	floor string
	// told is the state that the subscriber was last told of.
	told state
	// owed tells that a Lookup failed for want of a sync, so that its caller is to
	// be told of the sync even if it brings nothing new.
	owed bool
}

// run is one life of the reflector.
type run struct {
	stop context.CancelFunc
	// admitted is set once the run before has ended. Until then it is still that
	// one which reports, and it must not be heard.
	admitted bool
}

// newItem returns an item of s without references, whose reflector doesn't run yet.
// s.mu is held.
func (s *watchStore) newItem(ref volume.Ref, src *source) *item {
	ended := make(chan struct{})
	close(ended)
	it := &item{
		ref:      ref,
		source:   src,
		changed:  s.changed,
		running:  &s.running,
		logger:   s.logger,
		failures: s.failures,
		refs:     map[types.UID]int{},
		ended:    ended,
		ready:    make(chan struct{}),
		lastRead: time.Now(),
	}
	it.requests = &requests{item: it, backoff: retryBackoff()}
	it.reflector = newReflector(it, s.client)
	return it
}

// get returns the object, and waits for its sync until ctx ends.
func (it *item) get(ctx context.Context) (*volume.Object, error) {
	for {
		obj, ready, err := it.read(false)
		if ready == nil {
			return obj, err
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", it.notSynced(), ctx.Err())
		}
	}
}

// lookup returns the object, or ErrNotSynced if that takes waiting.
func (it *item) lookup() (*volume.Object, error) {
	obj, _, err := it.read(true)
	return obj, err
}

// read returns what is known. If that is not enough, it makes sure that the
// reflector runs, and returns ErrNotSynced and what to wait for before the next
// try; tell asks for a call of the subscriber at that moment too.
//
// Reading an immutable object stops its watch: there is nothing more to come but
// its deletion, and that is looked for when another pod begins to use it.
func (it *item) read(tell bool) (*volume.Object, <-chan struct{}, error) {
	now := time.Now()
	it.mu.Lock()
	defer it.mu.Unlock()
	it.lastRead = now
	switch {
	case it.closed != nil:
		return nil, nil, it.closed
	case !it.synced:
		it.startLocked()
		it.owed = it.owed || tell
		return nil, it.ready, it.notSyncedLocked()
	case it.object == nil:
		return nil, nil, apierrors.NewNotFound(it.source.resource, it.ref.Name)
	}
	if it.object.Immutable {
		it.stopLocked()
	}
	return it.object, nil, nil
}

func (it *item) isSynced() bool {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.synced
}

// notSynced says why the object isn't known.
func (it *item) notSynced() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.notSyncedLocked()
}

func (it *item) notSyncedLocked() error {
	if it.failure == nil {
		return fmt.Errorf("%s: %w", it.ref, ErrNotSynced)
	}
	return fmt.Errorf("%s: %w: %w", it.ref, ErrNotSynced, it.failure)
}

// start lets the reflector run for the first time.
func (it *item) start() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.startLocked()
}

// startLocked lets the reflector run, unless it does or never shall again.
func (it *item) startLocked() {
	if it.closed != nil || it.run != nil {
		return
	}
	ctx, stop := context.WithCancel(klog.NewContext(context.Background(), it.logger))
	before, ended := it.ended, make(chan struct{})
	r := &run{stop: stop}
	it.run, it.ended = r, ended
	it.running.Go(func() {
		defer close(ended)
		<-before
		it.admit(r)
		it.requests.serve(ctx, it.reflector)
	})
}

// admit lets r be heard, now that the run before has ended.
func (it *item) admit(r *run) {
	it.mu.Lock()
	defer it.mu.Unlock()
	r.admitted = true
}

// stopLocked stops the reflector; what is known stays as it is. Whatever the run
// still reports is ignored.
func (it *item) stopLocked() {
	if it.run != nil {
		it.run.stop()
		it.run = nil
	}
}

// unsyncLocked lets reads wait for the next sync.
func (it *item) unsyncLocked() {
	it.synced = false
	it.object = nil
	it.failure = nil
	it.ready = make(chan struct{})
}

// stopIfUnreadSince stops the reflector if nothing has read the object since t. The
// next read starts it again and waits for it. One that has not synced yet keeps
// trying: stopping it would only make a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run != nil && it.synced && it.lastRead.Before(t) {
		it.stopLocked()
		it.unsyncLocked()
	}
}

// verify looks at an object again whose watch stopped because it is immutable: it
// may have been deleted since, and created with other data. Reads wait until this
// is done.
func (it *item) verify() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.synced && it.run == nil {
		it.unsyncLocked()
		it.startLocked()
	}
}

// close stops the reflector for good and makes every read, also those that wait,
// return err.
func (it *item) close(err error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.closed != nil {
		return
	}
	it.closed = err
	it.stopLocked()
	if !it.synced {
		close(it.ready)
	}
	it.synced = false
	it.object = nil
}
