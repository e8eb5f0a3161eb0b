package manager

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// TestRefreshDuringAPause: resyncs after a 429 send no request before its Retry-After, and running pods keep what is known.
func TestRefreshDuringAPause(t *testing.T) {
	inBubbles(t, Options{}, polls, func(t *testing.T, e *env) {
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

// restore simulates a restore of the server's etcd to a version, with its revision bumped by bump. As with etcdutl, the objects' own
// versions stay as they were in the backup.
func (e *env) restore(past, bump int) {
	e.api.set(func() {
		for ref, changes := range e.api.Changes {
			for len(changes) > 0 && changes[len(changes)-1].RV > past {
				changes = changes[:len(changes)-1]
			}
			e.api.Changes[ref] = changes
		}
		e.api.compacted = max(e.api.RV+1, past+bump) // otherwise a watch waits for the requested version
		e.api.RV = past + bump
	})
	e.api.closeWatches()
}

func (e *env) wantOlderAnswer(want *OlderAnswer) {
	e.t.Helper()
	got := e.status().OlderAnswer
	if (got == nil) != (want == nil) || got != nil && *got != *want {
		e.t.Errorf("the older answer is %+v, want %+v", got, want)
	}
}

// TestOlderAnswer has an API server whose etcd was restored from a backup: the known state stays, and the refused answer is reported until
// something newer comes. A bumped revision does not help an object that has changed after the backup, and a new pod gets no older state.
func TestOlderAnswer(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		old := e.api.put(secret("a", "1"))
		past := e.api.RV
		v := e.api.put(secret("a", "2"))
		e.known(ref)
		e.wantOlderAnswer(nil)
		e.restore(past, 0)
		for i := range 3 {
			e.ask(ref)
			if n := e.changes(ref); (n == 1) != (i == 0) || n > 1 {
				t.Errorf("%d changes were reported at look %d", n, i)
			}
			if err := e.DenialErr(ref); !errors.Is(err, errOlder) {
				t.Errorf("DenialErr = %v", err)
			}
			e.wantOlderAnswer(&OlderAnswer{Object: old, ResourceVersion: old.ResourceVersion, Known: v.ResourceVersion})
			e.wantKnown(ref, v, "2")
		}
		e.restore(past, 1000)
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.ask(ref)
		e.wantOlderAnswer(&OlderAnswer{Object: old, ResourceVersion: old.ResourceVersion, Known: v.ResourceVersion})
		_, err := e.Manager.GetObject(pod("second"), ref)
		if e.detection != Watch && (!errors.Is(err, errOlder) || !errors.Is(err, ErrNotSynced)) {
			t.Errorf("the new pod gets %v", err)
		}
		v = e.api.put(secret("a", "3"))
		e.ask(ref)
		e.wantOlderAnswer(nil)
		e.wantDenied(ref, false)
		e.wantKnown(ref, v, "3")
	})
}

// TestOlderAnswerOfAnUnchangedObject: a watch shows how old the whole answer is. The object may then have the known version, or not exist.
func TestOlderAnswerOfAnUnchangedObject(t *testing.T) {
	inBubble(t, func(_ *testing.T, e *env) {
		ref := secretRef("a")
		past := e.api.RV
		v := e.api.put(secret("a", "1"))
		e.api.set(func() { e.api.RV = past + 10 })
		e.known(ref)
		e.restore(past+5, 0)
		e.ask(ref)
		e.wantOlderAnswer(&OlderAnswer{Object: v, ResourceVersion: "105", Known: "110"})
		e.restore(past+5, 1000) // a bumped revision is enough
		e.ask(ref)
		e.wantOlderAnswer(nil)
		e.restore(past, 0)
		e.ask(ref)
		e.wantOlderAnswer(&OlderAnswer{ResourceVersion: "100", Known: "1105"})
	})
}
