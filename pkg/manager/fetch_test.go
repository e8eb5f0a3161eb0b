package manager

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// holdAll has the server answer nothing until the result is closed.
func (e *env) holdAll() chan struct{} {
	gate := make(chan struct{})
	e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
	return gate
}

// TestRequestsAreBounded asks for more objects at once than there may be requests.
func TestRequestsAreBounded(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		gate := e.holdAll()
		var refs []volume.Ref
		for i := range 3 * maxOpening {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs)
		e.Refresh(refs)
		synctest.Wait()
		if n := len(e.api.seen); n != maxOpening {
			t.Errorf("%d requests are under way, want %d", n, maxOpening)
		}
		close(gate)
		for _, ref := range refs {
			e.wantNotFound(ref)
		}
	})
}

// TestARequestWithoutAnAnswerEnds, so that it does not keep others from being sent.
func TestARequestWithoutAnAnswerEnds(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		e.holdAll()
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGetErr(ref, ErrNotSynced)
		after(answerTime)
		e.api.set(func() { e.api.hold = nil })
		e.refresh(ref)
		e.wantNotFound(ref)
	})
}

// TestTheLastUnregistrationEndsTheRequest fills all slots with requests for objects
// that nobody references any more.
func TestTheLastUnregistrationEndsTheRequest(t *testing.T) {
	log := captureLog(t, "4")
	defer func() {
		if text := log.String(); strings.Contains(text, "Get failed") {
			t.Errorf("that a request was ended on purpose is logged:\n%s", text)
		}
	}()
	inPollBubble(t, func(t *testing.T, e *env) {
		e.holdAll()
		for i := range maxOpening {
			ref := secretRef(fmt.Sprint("s", i))
			e.RegisterPod(pod("p"), ref.Name, []volume.Ref{ref})
			e.wantGetErr(ref, ErrNotSynced)
		}
		synctest.Wait()
		e.api.set(func() { e.api.hold = nil })
		waiting := secretRef("waiting")
		e.RegisterPod(pod("p"), "v", []volume.Ref{waiting})
		e.wantGetErr(waiting, ErrNotSynced)
		synctest.Wait()
		e.wantAsked(waiting)
		start := time.Now()
		for i := range maxOpening {
			ref := secretRef(fmt.Sprint("s", i))
			e.UnregisterPod(pod("p"), ref.Name)
			if n := e.changes(ref); n != 0 {
				t.Errorf("heard of %d changes of %s", n, ref)
			}
		}
		e.wantAsked(waiting, "")
		if d := time.Since(start); d != 0 {
			t.Errorf("the slots were free after %v", d)
		}
	})
}

// TestRunEndsRequests of every kind: under way, waiting for a slot, and for the Node.
func TestRunEndsRequests(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.known(ref)
		after(maxAge)
		e.holdAll()
		refs := []volume.Ref{ref}
		for i := range 2 * maxOpening {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs[1:]) // ref stays known, so its age counts
		e.Refresh(refs)
		synctest.Wait()
		if e.detection == Cache && len(e.api.requests(nodeRef)) != 1 {
			t.Error("the Node is not being asked for")
		}
		start := time.Now()
		e.stop()
		if d := time.Since(start); d != 0 {
			t.Errorf("Run took %v to end", d)
		}
		sent := len(e.api.seen)
		e.Refresh(refs)
		e.wantGetErr(ref, errShutdown)
		after(time.Hour)
		if n := len(e.api.seen) - sent; n != 0 {
			t.Errorf("%d requests after Run", n)
		}
	})
}

// TestCallsOfOneReferenceFollowEachOther has the subscriber be slow.
func TestCallsOfOneReferenceFollowEachOther(t *testing.T) {
	inPollBubble(t, func(t *testing.T, e *env) {
		var running, calls atomic.Int32
		e.Subscribe(func(volume.Account, volume.Ref) {
			if running.Add(1) > 1 {
				t.Error("two calls at once")
			}
			calls.Add(1)
			<-time.After(10 * time.Second)
			running.Add(-1)
		})
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		for range 5 {
			e.api.put(secret("a", "x"))
			_, _ = e.GetObject(ref)
			e.refresh(ref)
			after(3 * time.Second)
			_, _ = e.GetObject(ref)
			after(maxAge)
		}
		after(time.Minute)
		if calls.Load() != 5 {
			t.Errorf("the subscriber was called %d times", calls.Load())
		}
	})
}
