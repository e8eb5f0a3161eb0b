package manager

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	age := time.Since(got.LastConfirmed)
	if got.State != state || got.Version != version || age != proven || got.Watched != followed {
		e.t.Errorf("got %s, %v, proven %s ago, followed %t, want %s, %v, %s, %t",
			got.State, got.Version, age, got.Watched, state, version, proven, followed)
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
		if got := e.status(); got.State != Unknown || !got.LastConfirmed.IsZero() || time.Since(got.Since) != unanswered || !errors.Is(got.Err, ErrNotSynced) || !got.Watched {
			t.Errorf("before the first answer: %+v", got)
		}
		e.api.set(func() { e.api.hold = nil })
		after(answerTime + maxPause) // the request under way stays silent
		e.wantNotFound(ref)
		before := time.Since(e.status().LastConfirmed)
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

// TestAQuietWatchIsNotStale: behind a server that sends no bookmarks an object that doesn't change stays unproven,
// and isn't stale while its watches can be opened.
func TestAQuietWatchIsNotStale(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.set(func() { e.api.lost = true })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantNotFound(ref)
		longest := time.Duration(0)
		for range 300 {
			e.readFor(time.Minute, []volume.Ref{ref})
			s := e.status()
			if longest = max(longest, time.Since(s.LastConfirmed)); s.Stale || !s.Watched {
				t.Fatalf("proven %s ago: %+v", time.Since(s.LastConfirmed), s)
			}
		}
		if longest < 20*time.Minute {
			t.Errorf("never unproven for more than %s", longest)
		}
		if n := len(e.api.requests(ref)); n < 5 {
			t.Errorf("the watch was opened %d times", n)
		}
	})
}

// TestStaleObjects: an object is stale once a watch of it, or a request for it, has failed, until one works.
func TestStaleObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		detection   ChangeDetection
		fails, ends func(*apiServer)
	}{
		"no connection": {Watch, refuse(syscall.ECONNREFUSED), refuse(nil)},
		"server fails":  {Watch, refuse(refusal(500)), refuse(nil)},
		"no right":      {Watch, refuse(refusal(403)), refuse(nil)},
		"no answer": {
			Watch, func(s *apiServer) { s.hold = func(apiRequest) <-chan struct{} { return make(chan struct{}) } },
			func(s *apiServer) { s.hold = nil },
		},
		"watches end at once": {Watch, func(s *apiServer) { s.ends = true }, func(s *apiServer) { s.ends = false }},
		"requests fail":       {Get, refuse(refusal(500)), refuse(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, tc.detection, func(t *testing.T, e *env) {
				ref := secretRef("a")
				e.api.set(func() { e.api.lost = true })
				v := e.api.put(secret("a", "1"))
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				e.wantGet(ref, v, "1")
				e.readFor(3*time.Minute, []volume.Ref{ref})
				if s := e.status(); s.Stale {
					t.Errorf("while nothing fails: %+v", s)
				}
				proven := e.status().LastConfirmed
				e.api.set(func() { tc.fails(e.api) })
				e.api.closeWatches()
				e.Refresh([]volume.Ref{ref})
				after(answerTime + workingTime)
				for range 60 { // also between two tries, and before the next one of the node has failed
					if s := e.status(); !s.Stale || s.LastConfirmed != proven {
						t.Fatalf("stale: %t, proven at %s, want %s", s.Stale, s.LastConfirmed, proven)
					}
					after(1100 * time.Millisecond)
				}
				e.api.set(func() { tc.ends(e.api) })
				e.Refresh([]volume.Ref{ref})
				after(answerTime + 2*maxPause + maxBackoff)
				if s := e.status(); s.Stale {
					t.Errorf("since nothing fails: %+v", s)
				}
			})
		})
	}
}

// TestStaleWhileOthersTry: in a pause of the node one object asks for all, and those that wait are as stale.
func TestStaleWhileOthersTry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		watchMany(t, e, 50)
		e.refuseAll(syscall.ECONNREFUSED)
		e.api.closeWatches()
		after(time.Second)
		stale := 0
		for s := range e.Objects {
			if s.Stale {
				stale++
			}
		}
		if stale != 50 {
			t.Errorf("%d of 50 objects are stale", stale)
		}
	})
}

func refuse(err error) func(*apiServer) {
	return func(s *apiServer) {
		if s.refuse = nil; err != nil {
			s.refuse = func(apiRequest) error { return err }
		}
	}
}

// watchMany registers objects and returns when their watches are open.
func watchMany(t *testing.T, e *env, objects int) []volume.Ref {
	t.Helper()
	var refs []volume.Ref
	for i := range objects {
		refs = append(refs, secretRef(fmt.Sprint("s-", i)))
	}
	e.RegisterPod(pod("p"), "v", refs)
	after(10 * time.Second)
	for _, ref := range refs {
		e.wantNotFound(ref)
	}
	return refs
}

// refusal returns the answer of a server with a code.
func refusal(code int32) error {
	reason := metav1.StatusReasonInternalError
	if code == 403 {
		reason = metav1.StatusReasonForbidden
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason}}
}
