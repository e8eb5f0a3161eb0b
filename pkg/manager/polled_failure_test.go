package manager

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

// TestAStaleCacheNeverTakesDataBack has a server whose cache lags behind the known state.
func TestAStaleCacheNeverTakesDataBack(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name string
		past func(e *env) // what the cache still has
		now  func(e *env) volume.Version
	}{
		{"an older version", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) volume.Version { return e.api.put(secret("a", "2")) }},
		{"not created yet", func(*env) {}, func(e *env) volume.Version { return e.api.put(secret("a", "2")) }},
		{"not recreated yet", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) volume.Version {
			e.api.delete(ref)
			return e.api.put(secret("a", "2"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubbleWith(t, Cache, func(t *testing.T, e *env) {
				tc.past(e)
				past := e.api.rv
				v := tc.now(e)
				e.known(ref)
				e.api.set(func() { e.api.behind = past })
				for range 3 {
					after(maxAge)
					e.refresh(ref)
					e.wantKnown(ref, v, "2")
				}
				if n := e.changes(ref); n > 1 { // once, because it lags
					t.Errorf("heard of %d changes", n)
				}
				v = e.api.put(secret("a", "3"))
				e.api.set(func() { e.api.behind = 0 })
				after(maxAge)
				e.refresh(ref)
				e.wantKnown(ref, v, "3")
			})
		})
	}
}

// TestAFailureIsNoAnswerForANewPod: what was known before a registration is not returned after it. A Refresh ends no pause.
func TestAFailureIsNoAnswerForANewPod(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		refuse := func(err error) {
			e.api.set(func() { e.api.refuse = func(apiRequest) error { return err } })
		}
		refuse(syscall.ECONNREFUSED)
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.reader = pod("second")
		before := len(e.api.requests(ref))
		for range 5 {
			e.wantGetErr(ref, ErrNotSynced)
			synctest.Wait()
		}
		e.wantGetErr(ref, syscall.ECONNREFUSED)
		if n := e.changes(ref); n != 0 {
			t.Errorf("heard of %d changes of a failure that may pass", n)
		}
		refuse(apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")))
		e.refresh(ref)
		after(maxOwnPause)
		if n := e.changes(ref); n < 1 {
			t.Error("heard nothing of a refusal")
		}
		for range 5 {
			if _, err := e.GetObject(ref); !apierrors.IsForbidden(err) {
				t.Errorf("GetObject: %v, want Forbidden", err)
			}
			synctest.Wait()
		}
		if n := len(e.api.requests(ref)) - before; n < 2 || n > 8 {
			t.Errorf("sent %d requests, want one for the first read and some with pauses", n)
		}
		e.api.set(func() { e.api.refuse = nil })
		after(maxOwnPause)
		e.wantKnown(ref, v, "1")
	})
}
