package manager

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// TestRefreshDuringAPause: resyncs after a 429 send no request before its Retry-After, and running pods keep what is known.
func TestRefreshDuringAPause(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		after(maxAge)
		e.refuseAll(apierrors.NewTooManyRequests("busy", 30))
		before := len(e.api.requests(ref))
		for range 29 {
			e.refresh(ref)
			e.wantKnown(ref, v, "1")
			after(time.Second)
		}
		if n := len(e.api.requests(ref)) - before; n != 1 {
			t.Errorf("%d requests within 29 s, although the first answer was 429 with Retry-After: 30", n)
		}
		v = e.api.put(secret("a", "2"))
		e.refuseAll(nil)
		after(5 * time.Second)
		e.wantKnown(ref, v, "2") // a resync wanted it meanwhile
	})
}

// TestRetryAfterIsNotInLockstep: many objects of one node are refused with the same Retry-After, as by an API server that has just started.
func TestRetryAfterIsNotInLockstep(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		const objects, retryAfter = 100, 10 * time.Second
		e.refuseAll(apierrors.NewTooManyRequests("storage is (re)initializing", int(retryAfter.Seconds())))
		var refs []volume.Ref
		for i := range objects {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs)
		e.MarkMounted(pod("p"), "v")
		after(retryAfter + 3*reflectorPause)
		moments := map[time.Time]bool{}
		for _, ref := range refs {
			sent := e.api.requests(ref)
			if len(sent) < 2 || sent[1].at.Sub(sent[0].at) < retryAfter {
				t.Fatalf("the requests for an object: %v", sent)
			}
			moments[sent[1].at] = true
		}
		if len(moments) < objects/2 {
			t.Errorf("%d objects send their second request at %d different moments", objects, len(moments))
		}
	})
}

// TestEachNewPodGetsItsOwnAnswer: a pod that comes while an immutable object is requested for another pod waits for the next answer.
func TestEachNewPodGetsItsOwnAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, gate := secretRef("a"), make(chan struct{})
		immutableInUse(e, ref)
		before := len(e.api.requests(ref))
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		after(time.Second)
		e.RegisterPod(pod("third"), "v", []volume.Ref{ref})
		close(gate)
		after(10 * time.Millisecond)
		for _, uid := range []string{"second", "third"} {
			if _, err := e.Manager.GetObject(pod(uid), ref); err != nil {
				t.Errorf("the %s pod gets %v", uid, err)
			}
		}
		if n := len(e.api.requests(ref)) - before; n != 2 {
			t.Errorf("%d requests, want one for each pod", n)
		}
		e.wantWatches(ref, 0)
	})
}

// TestAClosedGateDecides: a 503 closes the gate for the account, and its trials say when requests go on. No Retry-After of such an answer makes
// an object wait longer.
func TestAClosedGateDecides(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		unavailable := apierrors.NewServiceUnavailable("starting")
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 60}
		e.refuseAll(unavailable)
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(100 * time.Millisecond)
		e.refuseAll(nil)
		after(2 * time.Second)
		e.wantKnown(ref, v, "1")
	})
}
