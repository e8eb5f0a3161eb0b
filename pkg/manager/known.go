package manager

import (
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/volume"
)

var errStale = errors.New("the API server answered with an older state than is known already")

// known is what is known of one object, whichever way it came, and what the
// subscriber knows of that.
//
// mu guards everything below it, and what whoever embeds a known says that it guards.
// The subscriber is called without it.
type known struct {
	key
	source *source
	// changed tells the subscriber.
	changed  func()
	failures *failureLog
	openings *openings
	// place is the object's among the openings, which guard it.
	place place

	mu sync.Mutex
	// closed is what reads return once the object is of no use any more; else nil.
	closed error
	// synced tells that object is what the API server holds, nil if nothing.
	synced bool
	object *volume.Object
	// failure is the last failed request since requests succeeded; failedAt outlives that.
	failure  error
	failedAt time.Time
	// denial ends with the next answer, of a watched object with the next watch.
	denial denial

	// floor is the newest resourceVersion seen, of the object or of a list.
	// Anything older is a stale answer.
	floor string
	// told is the state that the subscriber was last told of.
	told state
	// owed tells that a GetObject failed for want of a sync, so that its caller is to
	// be told of the sync even if it brings nothing new.
	owed bool
}

// state is the identity of what the API server holds under a name, as far as it is
// known.
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

// same tells that nothing changed from s to t. An object without a resourceVersion
// can't tell.
func (s state) same(t state) bool {
	return s == t && (!s.present || s.ResourceVersion != "")
}

// older tells whether resourceVersion a is certainly older than b.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// stateLocked returns the object of one that is synced.
func (k *known) stateLocked() (*volume.Object, error) {
	if k.object == nil {
		return nil, apierrors.NewNotFound(k.source.resource, k.ref.Name)
	}
	return k.object, nil
}

func (k *known) isSynced() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.synced
}

// notSynced says why the object isn't known.
func (k *known) notSynced() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.notSyncedLocked()
}

func (k *known) notSyncedLocked() error {
	failure := k.failure
	if failure == nil {
		failure = k.openings.whyWaiting(&k.place)
	}
	if failure == nil {
		return fmt.Errorf("%s: %w", k.ref, ErrNotSynced)
	}
	return fmt.Errorf("%s: %w: %w", k.ref, ErrNotSynced, failure)
}

// prioritize has what waits to be sent for the object come first.
func (k *known) prioritize(pod types.UID) { k.openings.prioritize(&k.place, pod) }

// forgetLocked lets reads wait for the next sync.
func (k *known) forgetLocked() {
	k.synced = false
	k.object = nil
	k.failure = nil
	k.denial.end() // reads wait and say why
}

// setLocked takes obj, nil if there is none, as the state at resourceVersion, and
// returns whether the subscriber is to be told.
func (k *known) setLocked(obj *volume.Object, resourceVersion string) bool {
	if resourceVersion != "" {
		k.floor = resourceVersion
	}
	k.object = obj
	now := stateOf(obj)
	tell := k.owed || !k.told.same(now)
	k.told, k.owed = now, false
	return tell
}

// failed keeps err for those who ask why the object isn't synced. If it is a refusal
// the subscriber is told, provided that somebody has asked: waiting on may be of no
// use. The subscriber is also told when refusals begin to count.
func (k *known) failed(err error) {
	k.mu.Lock()
	tell := k.failedLocked(err)
	k.mu.Unlock()
	tell()
}

// failedLocked is failed but for what must happen without the lock, which it returns.
func (k *known) failedLocked(err error) (tell func()) {
	now := time.Now()
	again := now.Sub(k.failedAt) <= outageTime
	k.failedAt = now
	k.failure = err
	// Reads of what isn't synced say by themselves that a server is behind.
	counts := k.synced || !errors.Is(err, errStale)
	denied := counts && k.denial.add(err, now, k.enough(err))
	refused := k.owed && !k.synced && isRefusal(err)
	return func() {
		k.failures.log(k.key, err, again)
		if denied || refused {
			k.changed()
		}
	}
}

// recoverLocked takes in that requests for the object succeed, and returns whether the
// subscriber is to be told of that, and what must happen without the lock.
func (k *known) recoverLocked() (allowed bool, tell func()) {
	failure := k.failure
	k.failure = nil
	return k.denial.end(), func() {
		if failure != nil {
			k.failures.recovered(k.key, failure)
		}
	}
}
