package manager

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// errKMS is the API server's answer for an object that it can't decrypt.
var errKMS = apierrors.NewInternalError(errors.New("the KMS is down"))

// TestRefreshDuringAPause: resyncs after a 429 send no request before its Retry-After, and running pods keep what is known.
func TestRefreshDuringAPause(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.known(ref)
		after(maxAge)
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return apierrors.NewTooManyRequests("busy", 30) } })
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
		e.api.set(func() { e.api.refuse = nil })
		after(5 * time.Second)
		e.wantKnown(ref, v, "2") // a resync wanted it meanwhile
	})
}

// TestRetryAfterIsNotInLockstep: many objects of one node are refused with the same Retry-After, as by an API server that has just started.
func TestRetryAfterIsNotInLockstep(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		const objects, retryAfter = 200, 10 * time.Second
		var mu sync.Mutex
		at := map[volume.Ref][]time.Time{}
		e.api.set(func() {
			e.api.refuse = func(r apiRequest) error {
				mu.Lock()
				defer mu.Unlock()
				at[r.ref] = append(at[r.ref], time.Now())
				return apierrors.NewTooManyRequests("storage is (re)initializing", int(retryAfter.Seconds()))
			}
		})
		var refs []volume.Ref
		for i := range objects {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs)
		e.MarkMounted(pod("p"), "v")
		after(retryAfter + 3*reflectorPause)
		mu.Lock()
		defer mu.Unlock()
		second := map[time.Time]bool{}
		for _, times := range at {
			if len(times) < 2 || times[1].Sub(times[0]) < retryAfter {
				t.Fatalf("the requests for an object: %v", times)
			}
			second[times[1]] = true
		}
		if len(at) != objects || len(second) < objects/2 {
			t.Errorf("%d objects send their second request at %d different moments", len(at), len(second))
		}
	})
}

// TestANewPodTakesNothing: an object can't be read when a new pod comes. The running pod keeps what is known of it, also after the new pod
// has given up, and only the new pod waits.
func TestANewPodTakesNothing(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(immutableSecret("a", "1"))
		e.known(ref)
		e.MarkMounted(pod("first"), "v")
		e.reader = pod("first")
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return errKMS } })
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		after(time.Minute)
		e.wantKnown(ref, v, "1")
		if _, err := e.Manager.GetObject(pod("second"), ref); !errors.Is(err, ErrNotSynced) || !apierrors.IsInternalError(err) {
			t.Errorf("the new pod gets %v", err)
		}
		if s := e.status(); s.State != Present || !s.Stale && e.detection == Watch {
			t.Errorf("the object is %s, stale %t", s.State, s.Stale)
		}
		e.UnregisterPod(pod("second"), "v")
		after(10 * time.Minute)
		e.wantKnown(ref, v, "1")
		e.api.delete(ref)
		v = e.api.put(immutableSecret("a", "2"))
		e.api.set(func() { e.api.refuse = nil })
		after(maxBackoff)
		e.refresh(ref)
		e.wantKnown(ref, v, "2")
		e.wantWatches(ref, 0)
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
		e.api.set(func() { e.api.refuse = func(apiRequest) error { return unavailable } })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(100 * time.Millisecond)
		e.api.set(func() { e.api.refuse = nil })
		after(2 * time.Second)
		e.wantKnown(ref, v, "1")
	})
}
