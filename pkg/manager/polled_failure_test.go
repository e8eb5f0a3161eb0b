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

// TestAFailureIsNoAnswerForANewPod: what was known before a registration is not returned after it. A Refresh ends no pause.
func TestAFailureIsNoAnswerForANewPod(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		e.refuseAll(syscall.ECONNREFUSED)
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
		e.refuseAll(apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no")))
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
		e.refuseAll(nil)
		after(maxOwnPause)
		e.wantKnown(ref, v, "1")
	})
}
