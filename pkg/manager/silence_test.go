package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// watchMany registers objects and returns when their watches are open.
func watchMany(t *testing.T, e *env, objects int) []volume.Ref {
	t.Helper()
	refs := secretRefs("s", objects)
	e.RegisterPod(pod("p"), "v", refs)
	after(10 * time.Second)
	for _, ref := range refs {
		e.wantNotFound(ref)
	}
	return refs
}

// readFor lets time pass in which all objects are read, so that none goes idle. It returns how many
// requests came in each minute.
func (e *env) readFor(d time.Duration, refs []volume.Ref) (perMinute []int) {
	e.t.Helper()
	for range int(d / time.Minute) {
		before := e.api.total()
		after(time.Minute)
		perMinute = append(perMinute, e.api.total()-before)
		for _, ref := range refs {
			_, _ = e.GetObject(ref)
		}
	}
	return perMinute
}

// total returns how many requests came so far.
func (s *apiServer) total() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// TestSilentWatchesAreOpenedAgainSlowly: a server that sends no bookmarks gets less than 60 requests
// a minute of a node with 500 watches, also after hours, and each watch is opened again.
func TestSilentWatchesAreOpenedAgainSlowly(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.api.set(func() { e.api.lost = true })
		refs := watchMany(t, e, 500)
		perMinute := e.readFor(2*time.Hour, refs)
		for minute, n := range perMinute {
			if n >= 60 {
				t.Errorf("%d requests in minute %d", n, minute)
			}
		}
		t.Logf("requests in each minute: %v", perMinute)
		for _, ref := range refs {
			if n := len(e.api.requests(ref)); n < 2 {
				t.Errorf("%d requests for %s in two hours", n, ref)
			}
		}
	})
}

// TestWatchesWithBookmarksStay: no watch that brings bookmarks is opened again before the server ends it.
func TestWatchesWithBookmarksStay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		refs := watchMany(t, e, 100)
		before := e.api.total()
		e.readFor(minWatchTimeout-time.Minute, refs)
		if n := e.api.total() - before; n > 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestALostWatchIsRepaired: what a watch has failed to bring comes with the next one.
func TestALostWatchIsRepaired(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.set(func() { e.api.lost = true })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantNotFound(ref)
		e.api.set(func() { e.api.lost = false }) // for the next watch
		v := e.api.put(secret("a", "1"))
		e.readFor(silenceTime-time.Minute, []volume.Ref{ref})
		e.wantNotFound(ref)
		e.readFor(silenceTime+2*time.Minute, []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		e.wantWatches(ref, 1)
	})
}

// TestSilencesDouble: the longer nothing comes, the longer is the wait for it, and it begins anew with
// the first event.
func TestSilencesDouble(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		var at []time.Time
		e.api.set(func() {
			e.api.lost = true
			e.api.refuse = func(apiRequest) error {
				at = append(at, time.Now()) // of one watch at a time
				return nil
			}
		})
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		synctest.Wait()
		next := func(least time.Duration) {
			t.Helper()
			sent, begin := len(at), at[len(at)-1]
			for len(at) == sent && time.Since(begin) < 2*maxSilence {
				e.readFor(time.Minute, []volume.Ref{ref})
			}
			if took := at[len(at)-1].Sub(begin); took < least || took > least+silenceTime+time.Minute {
				t.Errorf("request %d came after %s, want %s and up to %s more", len(at), took, least, silenceTime)
			}
		}
		next(silenceTime)
		next(2 * silenceTime)
		next(4 * silenceTime)
		e.api.set(func() { e.api.lost = false })
		next(maxSilence)
		e.readFor(2*time.Minute, []volume.Ref{ref}) // which brings a bookmark
		e.api.set(func() { e.api.lost = true })
		e.api.closeWatches()
		e.readFor(time.Minute, []volume.Ref{ref})
		next(silenceTime)
	})
}
