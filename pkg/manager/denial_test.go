package manager

import (
	"errors"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

var errForbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no more"))

// answerWith has the API server fail each request with err, nil for none, and end the
// watches, which would outlive that.
func (e *env) answerWith(err error) {
	e.api.set(func() { e.api.refuse = func(apiRequest) error { return err } })
	e.api.closeWatches()
}

// ask lets enough time pass for a few requests to be sent in any strategy.
func (e *env) ask(ref volume.Ref) {
	for range 2 {
		after(maxAge)
		e.refresh(ref)
		_, _ = e.Lookup(ref) // as a resync does, so that it never is idle
	}
}

func (e *env) wantDenied(ref volume.Ref, want bool) {
	e.t.Helper()
	err := e.Denied(ref)
	if (err != nil) != want || want && !apierrors.IsForbidden(err) {
		e.t.Errorf("Denied(%s) = %v, want one: %t", ref, err, want)
	}
}

// An object that may not be read any more stays, with the refusal beside it. Its
// subscriber hears of the begin and of the end of that, once each.
func TestRightsTakenAwayAndGivenBack(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		e.wantDenied(ref, false)
		e.answerWith(errForbidden)
		for i := range 3 {
			e.ask(ref)
			if n := e.changes(ref); i == 0 && n != 1 || i > 0 && n != 0 {
				t.Errorf("heard of %d changes at look %d", n, i)
			}
			e.wantDenied(ref, true)
			e.wantLookup(ref, v, "1")
		}
		e.answerWith(syscall.ECONNREFUSED) // tells nothing of the rights
		e.ask(ref)
		e.wantDenied(ref, true)
		e.answerWith(nil)
		e.ask(ref)
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard of %d changes after the rights were given back, want 1", n)
		}
		e.wantDenied(ref, false)
		e.wantLookup(ref, v, "1")
		e.UnregisterPod(pod("first"), "v")
		e.wantDenied(ref, false)
	})
}

// What is refused for a moment, as by a server that has just started, is no denial, nor
// what fails for another reason.
func TestOtherFailuresAreNoDenial(t *testing.T) {
	for _, err := range []error{
		syscall.ECONNREFUSED, apierrors.NewUnauthorized("no"), apierrors.NewTooManyRequestsError("later"),
		apierrors.NewInternalError(errors.New("etcd")),
	} {
		t.Run(err.Error(), func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				v := e.api.put(secret("a", "1"))
				e.known(ref)
				for range 3 {
					e.answerWith(errForbidden)
					after(denialTime / 2)
					e.answerWith(err)
					e.ask(ref)
					e.wantDenied(ref, false)
				}
				e.answerWith(nil)
				e.ask(ref)
				if n := e.changes(ref); n != 0 {
					t.Errorf("heard of %d changes", n)
				}
				e.wantLookup(ref, v, "1")
			})
		})
	}
}

// A pod that has an object looked at again waits, and is told of the refusal that way.
func TestADenialEndsWhenReadsWait(t *testing.T) {
	inBubbleWith(t, Get, func(_ *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.known(ref)
		e.answerWith(errForbidden)
		e.ask(ref)
		e.wantDenied(ref, true)
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.wantDenied(ref, false)
		e.wantLookupErr(ref, ErrNotSynced)
		after(time.Second)
		_, err := e.Lookup(ref)
		if !apierrors.IsForbidden(err) {
			e.t.Errorf("got %v, want the refusal", err)
		}
	})
}

// TestOlderStatesOnly has an API server whose etcd was restored from a backup: what is
// known stays, and that is told, until something newer comes.
func TestOlderStatesOnly(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		past := e.api.rv
		v := e.api.put(secret("a", "2"))
		e.known(ref)
		e.api.set(func() {
			e.api.restored = past
			e.api.compacted = e.api.rv + 1 // else a watch waits for what it asks for
		})
		e.api.closeWatches()
		for i := range 3 {
			e.ask(ref)
			if n := e.changes(ref); i == 0 && n != 1 || i > 0 && n != 0 {
				t.Errorf("heard of %d changes at look %d", n, i)
			}
			if err := e.Denied(ref); !errors.Is(err, errStale) {
				t.Errorf("Denied = %v", err)
			}
			e.wantLookup(ref, v, "2")
		}
		e.api.set(func() { e.api.restored, e.api.compacted = 0, 0 })
		v = e.api.put(secret("a", "3"))
		e.ask(ref)
		e.wantDenied(ref, false)
		e.wantLookup(ref, v, "3")
	})
}
