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
	"github.com/refvol/refvol/pkg/question"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// key is an object as it is read with the rights of one account. The zero account stands for the client's own rights. Accounts don't share
// what they read.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// item is one object that pods reference, and the run that keeps it current. mu guards the fields below it, and is taken after Manager.mu.
// It is not held while the subscriber is called.
type item struct {
	key
	m      *Manager
	source *source
	// since is when the object was first referenced. It is constant.
	since time.Time
	// place is the object's place in the cache. cache.mu guards it.
	place place

	mu sync.Mutex
	// closed is the error of all reads after the last reference is gone; nil before that.
	closed error
	// run is the present run, or nil while nothing follows the object.
	run *run
	// state is the question about the object. Its answer is the state in the API server, or nil if there is no object. Each run restarts
	// it.
	state question.Question[*volume.Object]
	// newest is the newest resourceVersion that any run has seen. The item never goes back behind it.
	newest string
	// notified is the state that the subscriber was last notified of. awaited means that a GetObject failed with ErrNotSynced. The
	// subscriber is then notified of the sync even if the state is the same.
	notified known
	awaited  bool
	denial   denial
	// provenAt is when the API server last sent the state or confirmed that it is unchanged; zero for never.
	lastRead, provenAt time.Time
	// minTries has, with Cache and Get, the number of the first try whose answer a pod may read. It holds the pods that came after an
	// earlier try was sent.
	minTries map[types.UID]uint64
	// waiters are the pods whose publishes have waited for the state since the last answer. It is constant.
	waiters *requests.Pods
}

// run is one reflector or poller that keeps an item current. The lock of the item guards all fields except item, which is constant.
type run struct {
	item *item
	// cancel ends the goroutine of a reflector.
	cancel context.CancelFunc
	// pausing means that a reflector waits before its next request. again means that a poller sends another request after the one in
	// flight.
	pausing, again bool
	// ended means that nothing follows the object any more, because it is immutable.
	ended bool
	// watchOpenedAt is when the open watch started; zero for none.
	watchOpenedAt time.Time
}

// known says which object the API server holds under a name, as far as that is known.
type known struct {
	synced, present bool
	volume.Version
}

func knownOf(obj *volume.Object) known {
	if obj == nil {
		return known{synced: true}
	}
	return known{synced: true, present: true, Version: obj.Version}
}

// isSame reports whether nothing changed from k to other. Without a resourceVersion it returns false.
func (k known) isSame(other known) bool {
	return k == other && (!k.present || k.ResourceVersion != "")
}

// startLocked starts a new run, unless the item is closed. The caller holds the lock.
func (it *item) startLocked(urgent bool) {
	it.stopLocked()
	if it.closed != nil {
		return
	}
	r := &run{item: it, cancel: func() {}}
	it.run, it.state.Urgent = r, urgent
	if it.m.detection != Watch {
		r.refreshLocked()
		return
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(clientlog.Context(context.Background()))
	it.m.running.Go(func() { r.follow(ctx) })
}

func (it *item) stopLocked() {
	if it.run != nil {
		it.run.cancel()
		it.run = nil
	}
	it.state.Restart()
}

// isPausing reports whether the next request of the run waits for its time.
func (r *run) isPausing() bool {
	return r.pausing || r.item.m.detection != Watch && !r.item.state.IsInFlight() && !r.item.state.IsDue()
}

// onReferenced is called after each reference except the first. A pod must not get a state that is older than the pod. So an object that
// nothing follows is read afresh: with Cache for each new pod, with Get for each reference. A request in flight still serves the pods that
// wait for it. Otherwise a steady stream of new pods would keep all of them from ever getting a state.
func (it *item) onReferenced(uid types.UID, newPod, urgent bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if urgent && (it.m.detection != Watch || !it.state.Last.IsKnown()) {
		it.waiters.Add(uid)
	}
	r := it.run
	switch isPolled := it.m.detection == Get || it.m.detection == Cache && newPod; {
	case it.m.detection == Watch && newPod && r != nil && r.ended:
		it.startLocked(urgent)
	case !isPolled:
	case r == nil || r.isPausing():
		it.minTries[uid] = it.state.Tries() + 1
		it.startLocked(urgent)
	default:
		it.minTries[uid] = it.state.Tries() + 1
		it.state.Urgent = it.state.Urgent || urgent
		r.refreshLocked()
	}
}

// onUnreferenced is called after the last reference of a pod is removed.
func (it *item) onUnreferenced(uid types.UID) {
	it.mu.Lock()
	defer it.mu.Unlock()
	delete(it.minTries, uid)
}

// prioritize requests the state before others, for a pod, if it is not known.
func (it *item) prioritize(uid types.UID) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if !it.state.Last.IsKnown() {
		it.waiters.Add(uid)
	}
	if r := it.run; r == nil || !it.state.Last.IsKnown() && (!it.state.Urgent || r.isPausing()) {
		it.startLocked(true)
	}
}

// get returns what is known, for a pod. If nothing is known, it makes sure that a run finds out.
func (it *item) get(uid types.UID) (*volume.Object, error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.lastRead = time.Now()
	if it.closed != nil {
		return nil, it.closed
	}
	if it.run == nil {
		klog.Background().V(2).Info("Watching an object again that was idle", "ref", it.ref)
		it.startLocked(false)
	}
	switch last := it.state.Last; {
	case !last.IsKnown(), it.isOldFor(uid):
		it.awaited = true
		return nil, it.notSyncedLocked()
	case last.Value == nil:
		return nil, apierrors.NewNotFound(it.source.resource, it.ref.Name)
	default:
		return last.Value, nil
	}
}

// isOldFor reports whether the state was requested before a pod came. The caller holds the lock.
func (it *item) isOldFor(uid types.UID) bool {
	wants, waits := it.minTries[uid]
	if waits && it.state.Last.Try >= wants {
		delete(it.minTries, uid)
		return false
	}
	return waits
}

// isAwaited reports whether a pod waits for a later state than the present one. The caller holds the lock.
func (it *item) isAwaited() bool {
	for _, wants := range it.minTries {
		if it.state.Last.Try < wants {
			return true
		}
	}
	return false
}

// satisfiesAny reports whether the state is new enough for a pod that waits, or no pod waits. The caller holds the lock.
func (it *item) satisfiesAny() bool {
	for _, wants := range it.minTries {
		if it.state.Last.Try >= wants {
			return true
		}
	}
	return len(it.minTries) == 0
}

// notSyncedLocked returns an error that says why the state is not known. The caller holds the lock.
func (it *item) notSyncedLocked() error {
	err := it.state.Err
	if err == nil {
		_, err = it.m.requests.Err(it.account)
	}
	if err == nil {
		return &PendingError{it.ref}
	}
	return fmt.Errorf("%s: %w: %w", it.ref, ErrNotSynced, err)
}

// stopIfUnreadSince stops the run if nothing has read the object since t. The next read starts another run. A run without a state
// continues, because another first request would make a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.m.detection == Watch && it.run != nil && it.state.Last.IsKnown() && !it.run.ended && it.lastRead.Before(t) {
		klog.Background().V(2).Info("Watching an object no more, as nothing reads it", "ref", it.ref, "lastRead", it.lastRead)
		it.stopLocked()
		it.m.cache.release(&it.place)
	}
}

// close stops everything for good. Every later read returns err.
func (it *item) close(err error) {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.closed == nil {
		it.closed = err
		it.stopLocked()
		it.m.cache.release(&it.place)
	}
}

// set stores a state at a resourceVersion; nil means that there is no object. It returns an error if the state is older than what is known,
// or if the cache has no room. complete means that the run has all the rights that it needs.
func (r *run) set(obj *volume.Object, version string, complete bool) error {
	it := r.item
	it.mu.Lock()
	notify, err := r.setLocked(obj, version)
	if complete && err == nil {
		notify = it.denial.clear() || notify
	}
	it.mu.Unlock()
	if notify {
		it.m.changed(it.account, it.ref)
	}
	return err
}

func (r *run) setLocked(obj *volume.Object, version string) (notify bool, err error) {
	it := r.item
	if it.run != r {
		return false, context.Canceled
	}
	if err := it.refuseOlderLocked(obj, version); err != nil {
		return false, err
	}
	if err := it.m.cache.replace(&it.place, obj); err != nil {
		it.state.Last, it.state.Err, it.awaited = question.Answer[*volume.Object]{}, nil, true // there may be room later
		return true, err
	}
	if version != "" {
		it.newest = version
	}
	if !it.state.Last.IsKnown() {
		it.lastRead = time.Now() // give the caller that waits for this state time to read it
	}
	it.state.RecordAnswer(obj)
	it.waiters.Clear()
	it.provenAt = it.state.Last.CameAt
	now := knownOf(obj)
	notify = it.awaited && it.satisfiesAny() || !it.notified.isSame(now)
	it.notified, it.awaited = now, it.awaited && it.isAwaited()
	return notify, nil
}

// recordFailure records why a request failed, and returns how long to wait before the next one. That is 0 if it waits at the gate with
// others. The subscriber is notified of a refusal if a GetObject waits for the state, which may never come, and when a denial starts.
func (r *run) recordFailure(err error) (pause time.Duration) {
	it, now, redacted := r.item, time.Now(), requests.Redact(err)
	it.mu.Lock()
	if it.run != r {
		it.mu.Unlock()
		return 0
	}
	news := it.state.Err == nil || apierrors.ReasonForError(it.state.Err) != apierrors.ReasonForError(redacted)
	pause = it.state.RecordFailure(redacted)
	isSynced := it.state.Last.IsKnown()
	// Before the first state, the error of GetObject already says that a server lags behind.
	denied := (isSynced || !errors.Is(err, errOlder)) && it.denial.add(redacted, now, it.m.denialDelay(it.account, redacted))
	refused := it.awaited && (!isSynced || it.isAwaited()) && isRefusal(redacted)
	_, waits := it.m.requests.Err(it.account)
	if waits != nil {
		it.state.EndPause()
		pause = 0
	}
	it.mu.Unlock()
	level := 0
	if waits != nil || !news || isUsual(err) { // the gate logs the first failure for all of them
		level = detailLevel
	}
	logger := it.m.logLimit.Logger(klog.Background(), volume.Pod{UID: it.m.cache.anyPod(&it.place)}) // a pod may name a thousand objects
	logger.V(level).Info("Request for an object failed, trying again", "ref", it.ref, "account", it.account, "err", err)
	if denied || refused {
		it.m.changed(it.account, it.ref)
	}
	return pause
}
