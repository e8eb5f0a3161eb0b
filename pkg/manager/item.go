package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// key is an object as it is read with the rights of one account. The zero account stands for the client's own rights.
// Accounts don't share what they read.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// item is one object that pods reference, and the run that keeps it current. mu guards what is below it; it is taken
// after Manager.mu. The subscriber is called without it.
type item struct {
	key
	m      *Manager
	source *source
	// since is when the object was first referenced; constant.
	since time.Time
	// place is what the object takes of the cache, which guards it.
	place place

	mu sync.Mutex
	// closed is what reads return after the last reference has gone; nil before.
	closed error
	// run is the present one; nil while nothing follows the object.
	run *run
	// newest is the newest resourceVersion that any run has seen: the item never goes back.
	newest string
	// notified is the state that the subscriber was last notified of. awaited says that a GetObject failed with
	// ErrNotSynced: then it hears of the sync also if that brings nothing new.
	notified state
	awaited  bool
	denial   denial
	// provenAt is when the API server last said what the state is, or that it had not changed; zero for never.
	lastRead, provenAt time.Time
	// requests counts those that were sent, with Cache and Get, and wants is the first whose answer a pod may have, of pods that
	// came after an earlier one was sent.
	requests uint64
	wants    map[types.UID]uint64
}

// run is one life of what keeps an item current: a reflector, or a poller. The lock of the item guards all but item, which is
// constant.
type run struct {
	*item
	// urgent says that a publish waits for a state.
	urgent bool

	// cancel ends the goroutine.
	cancel context.CancelFunc
	// synced says that object is the state in the API server, nil for no object.
	synced bool
	object *volume.Object
	// err is why the last request has failed, nil after one that has not.
	err error
	// pausing says that the next request waits for its time.
	pausing bool
	// ended says that nothing follows the object any more, as it is immutable.
	ended bool
	// watching is since when a watch is open; zero for none.
	watching time.Time
	polling
}

// state says which object the API server holds under a name, as far as it is known.
type state struct {
	known, present bool
	volume.Version
}

func stateOf(obj *volume.Object) state {
	if obj == nil {
		return state{known: true}
	}
	return state{known: true, present: true, Version: obj.Version}
}

// same tells whether nothing changed from s to t. Without a resourceVersion there is no telling, so the answer is false.
func (s state) same(t state) bool {
	return s == t && (!s.present || s.ResourceVersion != "")
}

// startLocked begins a new run, unless the item is closed.
func (it *item) startLocked(urgent bool) {
	it.stopLocked()
	if it.closed != nil {
		return
	}
	it.run = &run{item: it, urgent: urgent, cancel: func() {}}
	if it.m.detection == Watch {
		it.run.goLocked(it.run.reflect)
	} else {
		it.run.askLocked()
	}
}

// goLocked starts the goroutine of a run.
func (r *run) goLocked(do func(context.Context)) {
	ctx, cancel := context.WithCancel(clientlog.Context(context.Background()))
	r.cancel = cancel
	r.m.running.Go(func() {
		defer cancel()
		do(ctx)
	})
}

func (it *item) stopLocked() {
	if it.run != nil {
		it.run.cancel()
		it.run = nil
	}
}

// referenced is called after each reference but the first. A pod must not get a state that is older than itself: so what
// nothing follows is read afresh, with Cache for each pod, with Get for each reference. A request that is under way ends, for
// those who wait for it: else a new pod every moment would keep all of them from a state.
func (it *item) referenced(uid types.UID, newPod, urgent bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	r := it.run
	switch isPolled := it.m.detection == Get || it.m.detection == Cache && newPod; {
	case it.m.detection == Watch && newPod && r != nil && r.ended:
		it.startLocked(urgent)
	case !isPolled:
	case r == nil || r.pausing:
		it.wants[uid] = it.requests + 1
		it.startLocked(urgent)
	default:
		it.wants[uid] = it.requests + 1
		r.urgent = r.urgent || urgent
		r.askLocked()
	}
}

// unreferenced is called after the last reference of a pod.
func (it *item) unreferenced(uid types.UID) {
	it.mu.Lock()
	defer it.mu.Unlock()
	delete(it.wants, uid)
}

// hurry has the state asked for before others, if it is not known.
func (it *item) hurry() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if r := it.run; r == nil || !r.synced && (!r.urgent || r.pausing) {
		it.startLocked(true)
	}
}

// get returns what is known, for a pod. If nothing is, it makes sure that a run finds out.
func (it *item) get(uid types.UID) (*volume.Object, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.lastRead = time.Now()
	if it.closed != nil {
		return nil, it.closed
	}
	if it.run == nil {
		it.startLocked(false)
	}
	switch r := it.run; {
	case !r.synced, r.isOldFor(uid):
		it.awaited = true
		return nil, r.notSyncedLocked()
	case r.object == nil:
		return nil, apierrors.NewNotFound(it.source.resource, it.ref.Name)
	default:
		return r.object, nil
	}
}

// isOldFor says whether the state was asked for before a pod came. The caller holds the lock.
func (r *run) isOldFor(uid types.UID) bool {
	wants, waits := r.wants[uid]
	if waits && r.answered >= wants {
		delete(r.wants, uid)
		return false
	}
	return waits
}

// satisfiesAny says whether the state is new enough for a pod that waits, or none came late. The caller holds the lock.
func (r *run) satisfiesAny() bool {
	for _, wants := range r.wants {
		if r.answered >= wants {
			return true
		}
	}
	return len(r.wants) == 0
}

// notSyncedLocked says why the state isn't known.
func (r *run) notSyncedLocked() error {
	err := r.err
	if err == nil {
		_, err = r.m.requests.Err(r.account)
	}
	if err == nil {
		return fmt.Errorf("%s: %w", r.ref, ErrPending)
	}
	return fmt.Errorf("%s: %w: %w", r.ref, ErrNotSynced, err)
}

// stopIfUnreadSince stops the run if nothing has read the object since t. The next read starts another one. One that has
// no state yet goes on: another first request would make a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.m.detection == Watch && it.run != nil && it.run.synced && !it.run.ended && it.lastRead.Before(t) {
		it.stopLocked()
		it.m.cache.release(&it.place)
	}
}

// close stops everything for good. Every read returns err from then on.
func (it *item) close(err error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.closed == nil {
		it.closed = err
		it.stopLocked()
		it.m.cache.release(&it.place)
	}
}

// with returns the context of the run's next request.
func (r *run) with(ctx context.Context) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return requests.With(ctx, requests.Meta{Account: r.account, Urgent: r.urgent})
}

// set takes over a state at a resourceVersion; nil is no object. It refuses one that is older than what is known, and one
// that the cache has no room for. complete says that the run is allowed all that it needs.
func (r *run) set(obj *volume.Object, version string, complete bool) error {
	r.mu.Lock()
	tell, err := r.setLocked(obj, version)
	if complete && err == nil {
		tell = r.denial.end() || tell
	}
	r.mu.Unlock()
	if tell {
		r.m.changed(r.account, r.ref)
	}
	return err
}

func (r *run) setLocked(obj *volume.Object, version string) (tell bool, err error) {
	if r.item.run != r {
		return false, context.Canceled
	}
	if err := r.refuseOlderLocked(obj, version); err != nil {
		return false, err
	}
	if err := r.m.cache.keep(&r.place, obj); err != nil {
		r.synced, r.object, r.err, r.awaited = false, nil, nil, true // there may be room later
		return true, err
	}
	if version != "" {
		r.newest = version
	}
	if !r.synced {
		r.lastRead = time.Now() // the caller that waits for this needs time to read it
	}
	r.object, r.synced, r.err, r.provenAt = obj, true, nil, time.Now()
	r.urgent, r.answered, r.answeredAt = false, r.sent, r.sentAt
	now := stateOf(obj)
	tell = r.awaited && r.satisfiesAny() || !r.notified.same(now)
	r.notified, r.awaited = now, r.awaited && r.isAwaited()
	return tell, nil
}

// failed records why a request has failed. The subscriber hears of a refusal if a GetObject waits for the state, which
// may never come, and when a denial begins.
func (r *run) failed(err error) {
	now := time.Now()
	r.mu.Lock()
	if r.item.run != r {
		r.mu.Unlock()
		return
	}
	told := requests.Told(err)
	news := r.err == nil || apierrors.ReasonForError(r.err) != apierrors.ReasonForError(told)
	r.err = told
	// Before the first state, the error of GetObject already says that a server lags behind.
	denied := (r.synced || !errors.Is(err, errOlder)) && r.denial.add(told, now, r.m.grace(r.account, told))
	refused := r.awaited && (!r.synced || r.isAwaited()) && isRefusal(told)
	r.mu.Unlock()
	logger := klog.Background()
	if _, waits := r.m.requests.Err(r.account); waits != nil || !news || isUsual(err) { // the first is logged for all
		logger = logger.V(detailLevel)
	}
	logger.Info("Request for an object failed, trying again", "ref", r.ref, "account", r.account, "err", err)
	if denied || refused {
		r.m.changed(r.account, r.ref)
	}
}

// allowed records that nothing is refused any more.
func (r *run) allowed() {
	r.mu.Lock()
	tell := r.item.run == r && r.denial.end()
	if r.item.run == r {
		r.err = nil
	}
	r.mu.Unlock()
	if tell {
		r.m.changed(r.account, r.ref)
	}
}

// sleep waits before the next request.
func (r *run) sleep(ctx context.Context, d time.Duration) {
	r.setPausing(true)
	defer r.setPausing(false)
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (r *run) setPausing(pausing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pausing = pausing
}
