package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// idleTime is how long an object must be unread before a test's manager stops its watch. The sweep that does it comes up to a minute later.
const idleTime = 5 * testResync

func TestIdle(t *testing.T) {
	ref := secretRef("a")
	read := func(e *env) { _, _ = e.GetObject(ref) }
	for _, tc := range []struct {
		name string
		do   func(e *env)
		want int
	}{
		{"just synced", func(*env) { after(idleTime - time.Second) }, 1},
		{"never read", func(*env) { after(idleTime + time.Minute) }, 0},
		{"read long ago", func(e *env) { read(e); after(idleTime + time.Minute) }, 0},
		{"of a mounted volume", func(e *env) { e.MarkMounted(pod("p"), "v"); after(3 * idleTime) }, 1},
		{"read by each resync", func(e *env) {
			for range 20 {
				after(testResync)
				read(e)
			}
		}, 1},
		{"changed often, never read", func(e *env) {
			for range 20 {
				after(testResync)
				e.api.put(secret("a", "x"))
			}
			after(0)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				e.api.put(secret("a", "1"))
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				tc.do(e)
				e.wantWatches(ref, tc.want)
			})
		})
	}
}

func TestAReadRestartsAnIdleWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		after(idleTime + time.Minute)
		e.wantWatches(ref, 0)
		e.changes(ref)

		e.wantGet(ref, v, "1")
		e.wantWatches(ref, 1)
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard %d times of an unchanged object that a read waited for, want once", n)
		}

		after(idleTime + time.Minute)
		v = e.api.put(secret("a", "2"))
		e.wantGet(ref, v, "2")
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard of %d changes of an object that changed while unwatched, want 1", n)
		}

		after(idleTime + time.Minute)
		e.api.delete(ref)
		e.wantNotFound(ref)
		after(idleTime + time.Minute)
		e.wantWatches(ref, 0) // an object that is known to be absent becomes idle too
		v = e.api.put(secret("a", "3"))
		e.wantGet(ref, v, "3")
		e.wantWatches(ref, 1)
	})
}

func TestASlowFirstListIsNotStopped(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, gate := secretRef("a"), make(chan struct{})
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(3 * idleTime)
		close(gate)
		after(idleTime - time.Minute)
		e.wantWatches(ref, 1) // there is time to read what took so long
		e.wantGet(ref, v, "1")
	})
}
