package manager

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

// status returns what the manager tells of its only object.
func (e *env) status() ObjectStatus {
	e.t.Helper()
	synctest.Wait()
	all := slices.Collect(e.Objects)
	if len(all) != 1 {
		e.t.Fatalf("%d objects, want 1", len(all))
	}
	return all[0]
}

func (e *env) wantStatus(state ObjectState, version volume.Version, proven time.Duration, followed bool) {
	e.t.Helper()
	got := e.status()
	age := time.Since(got.ProvenAt)
	if got.State != state || got.Version != version || age != proven || got.Followed != followed {
		e.t.Errorf("got %s, %v, proven %s ago, followed %t, want %s, %v, %s, %t",
			got.State, got.Version, age, got.Followed, state, version, proven, followed)
	}
	if (got.Err != nil) != (state == Unknown || state == Denied) {
		e.t.Errorf("a %s object has the error %v", got.State, got.Err)
	}
}

// TestObjects: an event, a bookmark or a state proves an object current, and time or an open watch alone
// don't.
func TestObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, none := secretRef("a"), volume.Version{}
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return make(chan struct{}) } })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		const unanswered = answerTime + time.Second
		after(unanswered)
		if got := e.status(); got.State != Unknown || !got.ProvenAt.IsZero() || time.Since(got.Since) != unanswered || !errors.Is(got.Err, ErrNotSynced) || !got.Followed {
			t.Errorf("before the first answer: %+v", got)
		}
		e.api.set(func() { e.api.hold = nil })
		after(answerTime + maxPause) // the request under way stays silent
		e.wantNotFound(ref)
		before := time.Since(e.status().ProvenAt)
		e.wantStatus(Absent, none, before, true)

		v := e.api.put(secret("a", "1"))
		e.wantStatus(Present, v, 0, true)
		after(bookmarkInterval - time.Second)
		e.wantStatus(Present, v, bookmarkInterval-time.Second, true)
		after(time.Second)
		e.wantStatus(Present, v, 0, true)

		e.api.set(func() { e.api.lost = true })
		e.api.closeWatches()
		after(2 * time.Minute) // the next watch goes on from there, and brings nothing
		e.wantStatus(Present, v, 2*time.Minute, true)

		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no"))
		e.api.set(func() { e.api.lost, e.api.refuse = false, func(apiRequest) error { return forbidden } })
		e.api.closeWatches()
		after(denialTime + 2*maxPause)
		e.wantStatus(Denied, v, 2*time.Minute+denialTime+2*maxPause, true)
	})
}

// TestObjectsThatNothingFollows: what is immutable needs no watch, and can't become stale.
func TestObjectsThatNothingFollows(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(immutableSecret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		e.wantStatus(Present, v, 0, false)
		e.UnregisterPod(pod("p"), "v")
		for range e.Objects {
			t.Error("an object without references is told")
		}
	})
}

// TestObjectsOfRequests: each answer proves an object current as of when it was asked for.
func TestObjectsOfRequests(t *testing.T) {
	inBubbleWith(t, Get, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		after(time.Minute)
		e.wantStatus(Present, v, time.Minute, true)
		e.Refresh([]volume.Ref{ref})
		e.wantStatus(Present, v, 0, true)
	})
}
