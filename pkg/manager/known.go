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

var errOlder = errors.New("the API server answered with an older state than is known already")

// known is what is known of one object, by watches or by requests, and what the subscriber
// was notified of.
//
// mu guards everything below it, and the fields that an embedding type names. The subscriber
// is called without it.
type known struct {
	key
	source *source
	// changed tells the subscriber.
	changed  func()
	failures *failureLog
	openings *openings
	// candidate is the object among the openings, which guard it.
	candidate candidate
	// holding is the object's place in the cache, which guards it. It holds object.
	holding *holding

	mu sync.Mutex
	// closed is what reads return after the object was closed; nil before.
	closed error
	// synced says that object is the state in the API server, nil for no object.
	synced bool
	object *volume.Object
	// failure is what pods may learn of the error of the last request, nil after a success.
	// failedAt is when a request last failed, also after a success.
	failure  error
	failedAt time.Time
	// failing says that a request has failed, or a watch at once, and none has worked since.
	failing bool
	// denial ends with the next answer, or for a watched object with the next watch.
	denial denial

	// since is when the object was first referenced; constant. provenAt is when the API server
	// last said what the state is, or that it had not changed; zero for never.
	since, provenAt time.Time

	// newestVersion is the newest resourceVersion seen, of the object or of a list. Answers
	// that are older are refused.
	newestVersion string
	// notified is the state that the subscriber was last notified of.
	notified state
	// awaited says that a GetObject failed with ErrNotSynced. Then the subscriber hears of the
	// sync also if it brings nothing new.
	awaited bool
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

// same tells whether nothing changed from s to t. Without a resourceVersion there is no
// telling, so the answer is false.
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

// notSyncedLocked says why the object isn't known.
func (k *known) notSyncedLocked() error {
	failure := k.failure
	if failure == nil {
		failure = k.openings.whyWaiting(&k.candidate)
	}
	if failure == nil {
		return fmt.Errorf("%s: %w", k.ref, ErrNotSynced)
	}
	return fmt.Errorf("%s: %w: %w", k.ref, ErrNotSynced, failure)
}

// prioritize puts the object's waiting request first.
func (k *known) prioritize(pod types.UID) { k.openings.prioritize(&k.candidate, pod) }

// forgetLocked forgets the state: get returns ErrNotSynced until the next sync.
func (k *known) forgetLocked() {
	k.synced = false
	k.object = nil
	k.holding.release()
	k.failure, k.failing = nil, false
	k.denial.end() // the errors of get say why
}

// provedLocked records that the API server has said, at a time, what the state is or that it has not changed.
func (k *known) provedLocked(at time.Time) { k.provenAt, k.failing = at, false }

// setLocked sets the state at resourceVersion to obj, nil for no object. It returns whether
// the subscriber must be notified. It fails with a FullError if the cache refuses obj. Then the state is unknown,
// and is to be asked for again, as there may be room later.
func (k *known) setLocked(obj *volume.Object, resourceVersion string) (tell bool, err error) {
	if obj == nil {
		k.holding.release()
	} else if obj, err = k.holding.keep(obj); err != nil {
		k.synced, k.object = false, nil
		k.awaited = true
		return true, err
	}
	if resourceVersion != "" {
		k.newestVersion = resourceVersion
	}
	k.object = obj
	now := stateOf(obj)
	tell = k.awaited || !k.notified.same(now)
	k.notified, k.awaited = now, false
	return tell, nil
}

func (k *known) held() *holding { return k.holding }

// failed records the error of a request. It notifies the subscriber of a refusal if a
// GetObject waits for the sync, which may never come, and when a denial begins.
func (k *known) failed(err error) {
	k.mu.Lock()
	tell := k.failedLocked(err)
	k.mu.Unlock()
	tell()
}

// failedLocked is failed without the part that must happen without the lock, which it
// returns.
func (k *known) failedLocked(err error) (tell func()) {
	now := time.Now()
	// Objects that share a backoff are asked for minutes apart.
	again := now.Sub(k.failedAt) <= outageTime || k.failure != nil && apierrors.ReasonForError(k.failure) == apierrors.ReasonForError(err)
	k.failedAt, k.failing = now, true
	k.failure = toldOf(err)
	// Before the sync, the error of get already says that a server lags behind.
	counts := k.synced || !errors.Is(err, errOlder)
	denied := counts && k.denial.add(k.failure, now, k.enough(err))
	refused := k.awaited && !k.synced && isRefusal(err)
	return func() {
		k.failures.log(k.key, err, again)
		if denied || refused {
			k.changed()
		}
	}
}

// recoverLocked records that a request has succeeded. It returns whether the subscriber must
// be notified of that, and what the caller must do without the lock.
func (k *known) recoverLocked() (allowed bool, tell func()) {
	failure := k.failure
	k.failure = nil
	return k.denial.end(), func() {
		if failure != nil {
			k.failures.recovered(k.key, failure)
		}
	}
}
