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

	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// key is an object as it is read with the rights of one account. The zero account stands for the client's own rights. Accounts don't share
// what they read.
type key struct {
	account volume.ServiceAccount
	ref     volume.Ref
}

// item is one object that pods reference, what is known about it, and the run that brings what is new. mu guards the fields below it, and
// is taken after Manager.mu. It is not held while the subscriber is called.
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
	run    run
	state  state
	demand demand
	// lastRead is when GetObject last read the object.
	lastRead time.Time
}

// startLocked starts a run, unless there is one or the item is closed. The caller holds the lock.
func (it *item) startLocked() {
	if it.run == nil && it.closed == nil {
		it.run = newRun(it)
		it.run.request()
	}
}

// stopLocked stops the run, if there is one. The caller holds the lock.
func (it *item) stopLocked() {
	if it.run != nil {
		it.run.stop()
		it.run = nil
	}
}

// reference is called for each reference. newPod means that it is the first one of its pod, and urgent that a publish waits. A new volume
// must not get a state that is older than its pod. So it waits for the answer to another request unless a watch follows the object: with
// Cache for each new pod, with Get always, and with Watch for the new pods of an immutable object. A request in flight still serves those
// who wait for it. Otherwise a steady stream of new pods would keep all of them from ever getting a state.
func (it *item) reference(uid types.UID, newPod, urgent bool) {
	it.mu.Lock()
	defer it.mu.Unlock()
	last, isFirst := it.state.last, it.state.tries == 0
	isOld := urgent && !isFirst && it.m.isOld(last.object, newPod)
	if isOld {
		it.demand.minTries[uid] = it.state.tries + 1
	}
	if isOld || isFirst {
		it.startLocked()
	}
	if it.run == nil { // the next read starts an idle one
		return
	}
	if isOld {
		it.run.request()
	}
	if urgent && (isOld || !last.isKnown) {
		it.demand.publishes.Add(uid)
		it.run.hurry()
	}
}

// isOld reports whether a known object is read afresh for a volume that is not mounted yet.
func (m *Manager) isOld(obj *volume.Object, newPod bool) bool {
	switch m.detection {
	case Get:
		return true
	case Cache:
		return newPod
	}
	return newPod && isImmutable(obj)
}

// unreference is called after the last reference of a pod is removed.
func (it *item) unreference(uid types.UID) {
	it.mu.Lock()
	defer it.mu.Unlock()
	delete(it.demand.minTries, uid)
	it.demand.publishes.Remove(uid)
}

// refresh is called at each resync.
func (it *item) refresh() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run != nil {
		it.run.refresh()
	}
}

// againTime is the shortest time between two requests of readAgain, whatever number of volumes asks.
const againTime = 15 * time.Second

// readAgain requests the state of an object that nothing follows any more.
func (it *item) readAgain() {
	it.mu.Lock()
	defer it.mu.Unlock()
	if it.run != nil && time.Since(it.state.askedAt) >= againTime {
		it.run.readAgain()
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
		it.startLocked()
	}
	switch last := it.state.last; {
	case !last.isKnown, it.demand.isOldFor(uid, last.try):
		it.demand.isRead = true
		return nil, it.notSyncedLocked()
	case last.object == nil:
		return nil, apierrors.NewNotFound(it.source.resource, it.ref.Name)
	default:
		return last.object, nil
	}
}

// notSyncedLocked returns an error that says why the state is not known. The caller holds the lock.
func (it *item) notSyncedLocked() error {
	err := it.state.err
	if err == nil {
		_, err = it.m.requests.Err(it.account)
	}
	if err == nil {
		return &PendingError{it.ref}
	}
	return fmt.Errorf("%s: %w: %w", it.ref, ErrNotSynced, err)
}

// stopIfUnreadSince stops the run if nothing has read the object since t, and forgets the state. The next read starts another run. What a
// mounted volume references stays: the volume may not be able to read it for a while. A run without a state continues, because another first
// request would make a slow API server slower.
func (it *item) stopIfUnreadSince(t time.Time) {
	it.mu.Lock()
	defer it.mu.Unlock()
	isIdle := it.lastRead.Before(t) && it.state.last.isKnown && !isImmutable(it.state.last.object)
	if isIdle && it.m.detection == Watch && it.run != nil && !it.m.cache.isMounted(&it.place) {
		klog.Background().V(2).Info("Watching an object no more, as nothing reads it", "ref", it.ref, "lastRead", it.lastRead)
		it.stopLocked()
		it.state.last, it.state.err = answer{}, nil
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
		it.state.last = answer{}
		it.m.cache.release(&it.place)
	}
}

// set stores a state at a resourceVersion that a run brought; nil means that there is no object. It returns an error if the state is older
// than what is known, or if the cache has no room. complete means that the run has all the rights that it needs.
func (it *item) set(r run, obj *volume.Object, version string, complete bool) error {
	it.mu.Lock()
	notify, err := it.setLocked(r, obj, version)
	if complete && err == nil {
		notify = it.state.denial.clear() || notify
	}
	it.mu.Unlock()
	if notify {
		it.m.changed(it.account, it.ref)
	}
	return err
}

func (it *item) setLocked(r run, obj *volume.Object, version string) (notify bool, err error) {
	s, d := &it.state, &it.demand
	if it.run != r {
		return false, context.Canceled
	}
	if err := s.refuseOlder(obj, version); err != nil {
		return false, err
	}
	if err := it.m.cache.replace(&it.place, obj); err != nil {
		s.last, s.err, d.isRead = answer{}, nil, true // there may be room later
		return true, err
	}
	if version != "" {
		s.newest = version
	}
	if !s.last.isKnown {
		it.lastRead = time.Now() // give the caller that waits for this state time to read it
	}
	s.record(obj)
	if it.m.detection == Watch && !isImmutable(obj) {
		clear(d.minTries) // its watch brings what is newer
	}
	if !d.isAwaited(s.last.try) {
		d.publishes.Clear()
	}
	now := knownOf(obj)
	notify = d.isRead && d.satisfiesAny(s.last.try) || !s.notified.isSame(now)
	s.notified, d.isRead = now, d.isRead && d.isAwaited(s.last.try)
	return notify, nil
}

// prove records that the object is no longer refused and, unless version is "", that it has not changed up to that version.
func (it *item) prove(r run, version string) {
	it.mu.Lock()
	notify := false
	if it.run == r && !IsOlder(version, it.state.newest) {
		it.state.err, notify = nil, it.state.denial.clear()
		if version != "" {
			it.state.provenAt = time.Now()
		}
	}
	it.mu.Unlock()
	if notify {
		it.m.changed(it.account, it.ref)
	}
}

// fail records why a request of a run failed. The subscriber is notified of a refusal if a GetObject waits for the state, which may never
// come, and when a denial starts.
func (it *item) fail(r run, err error) {
	now, redacted := time.Now(), requests.Redact(err)
	it.mu.Lock()
	if it.run != r {
		it.mu.Unlock()
		return
	}
	s, d := &it.state, &it.demand
	news := s.err == nil || apierrors.ReasonForError(s.err) != apierrors.ReasonForError(redacted)
	s.err = redacted
	// Before the first state, the error of GetObject already says that a server lags behind.
	denied := (s.last.isKnown || !errors.Is(err, errOlder)) && s.denial.add(redacted, now, it.m.denialDelay(it.account, redacted))
	refused := d.isRead && (!s.last.isKnown || d.isAwaited(s.last.try)) && isRefusal(redacted)
	_, waits := it.m.requests.Err(it.account)
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
}
