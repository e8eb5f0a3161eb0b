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

// status returns what the manager reports about its only object.
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

// TestObjects: an event, a bookmark or a state proves an object current. Time or an open watch alone do not.
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
		after(answerTime + maxPause) // the request in flight stays silent
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
		after(2 * time.Minute) // the next watch continues from there, and brings nothing
		e.wantStatus(Present, v, 2*time.Minute, true)

		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no"))
		e.api.set(func() { e.api.lost, e.api.refuse = false, func(apiRequest) error { return forbidden } })
		e.api.closeWatches()
		after(denialTime + 2*maxPause)
		e.wantStatus(Denied, v, 2*time.Minute+denialTime+2*maxPause, true)
	})
}

// TestAQuietWatchIsNotStale: with a server that sends no bookmarks, an object that doesn't change stays unproven, and isn't stale while its
// watches can be opened.
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

// TestOnlyOneWatchIsRefused: when an account's requests are refused, an object whose watch works is not stale, and one whose watch has to
// be opened is.
func TestOnlyOneWatchIsRefused(t *testing.T) {
	asPods(t, []ChangeDetection{Watch}, func(t *testing.T, e *env) {
		works, opens, reader := secretRef("works"), secretRef("opens"), podOf("p", "a")
		wantStale := func(when string, ref volume.Ref, want bool) {
			t.Helper()
			synctest.Wait()
			for s := range e.Objects {
				if s.Ref == ref && (s.Stale != want || !s.Watched) {
					t.Errorf("%s: %+v, want stale %t", when, s, want)
				}
			}
		}
		e.RegisterPod(reader, "v", []volume.Ref{works})
		wantStale("as soon as the watch is open", works, false)
		after(workingTime)
		wantStale("when it has lasted", works, false)
		e.refuseAll(errUnauthorized)
		e.RegisterPod(reader, "w", []volume.Ref{opens})
		after(time.Minute)
		wantStale("while the token is refused", works, false)
		wantStale("while the token is refused", opens, true)
	})
}

// TestAWatchThatIsCutIsStale: if each watch is cut as soon as it is open, for example by a proxy, the object is stale.
func TestAWatchThatIsCutIsStale(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		event bool
		stale bool
	}{
		"just before it counts as working": {after: workingTime - 1, stale: true},
		"as soon as it counts as working":  {after: workingTime},
		"early, after an event":            {after: workingTime - 1, event: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				e.api.put(secret("a", "1"))
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				if test.event {
					e.api.put(secret("a", "2"))
				}
				after(test.after)
				if s := e.status(); s.Stale || !s.Watched {
					t.Errorf("before the watch ends: %+v", s)
				}
				e.api.closeWatches()
				if s := e.status(); s.Stale != test.stale || !s.Watched {
					t.Errorf("when the watch has ended: %+v, want stale %t", s, test.stale)
				}
			})
		})
	}
}
