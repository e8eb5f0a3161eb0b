package manager

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/refvol/refvol/pkg/volume"
)

// idleTime is after how long without a read a test's manager stops a watch; the
// sweep that does it comes up to a minute later.
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

func TestIdleTimeIsAtLeastAMinute(t *testing.T) {
	m, err := New(Options{Client: newAPIServer(t).client(), ResyncInterval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if m.maxIdle != time.Minute {
		t.Errorf("got %v", m.maxIdle)
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
		e.wantWatches(ref, 0) // what is known to be absent goes idle too
		v = e.api.put(secret("a", "3"))
		e.wantGet(ref, v, "3")
		e.wantWatches(ref, 1)
	})
}

func TestAFailedReadCountsAsARead(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		for range 20 {
			after(testResync)
			e.wantNotFound(ref)
		}
		if got := e.api.requests(ref); len(got) != 1 {
			t.Errorf("got requests %v, want one", got)
		}
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

// TestRunsNeverOverlap restarts a watch whose old run is slow to end.
func TestRunsNeverOverlap(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, gate := secretRef("a"), make(chan struct{})
		e.Subscribe(func(volume.Account, volume.Ref) { <-gate })
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		for range 3 { // the first run hangs in the subscriber; each GetObject asks for another
			synctest.Wait()
			e.objects.stopIdle(time.Now().Add(time.Second))
			e.wantGetErr(ref, ErrNotSynced)
		}
		synctest.Wait()
		if got := e.api.requests(ref); len(got) != 1 {
			t.Errorf("got requests %v while the old run had not ended, want one", got)
		}
		close(gate)
		e.wantGet(ref, v, "1")
		e.wantWatches(ref, 1)
		if got := e.api.requests(ref); len(got) != 2 {
			t.Errorf("got requests %v, want two", got)
		}
	})
}

// TestALateEventOfAStoppedRunIsIgnored delivers what a reflector may still report
// after its item was stopped.
func TestALateEventOfAStoppedRunIsIgnored(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.changes(ref)
		it := e.item(ref)
		e.objects.stopIdle(time.Now().Add(time.Second))
		late := secret("a", "late")
		late.ResourceVersion = "999"
		if err := it.sync(objectOf(t, late), "999", true); err != nil {
			t.Error(err)
		}
		if err := it.event(event{kind: watch.Modified, object: objectOf(t, late), resourceVersion: "999"}); err != nil {
			t.Error(err)
		}
		if it.isSynced() || it.newestVersion == "999" || e.changes(ref) != 0 {
			t.Error("a stopped run was heard")
		}

		// The same while the next run waits for the stopped one to end.
		it.mu.Lock()
		it.run = &run{stop: func() {}}
		it.mu.Unlock()
		if err := it.sync(objectOf(t, late), "999", true); err != nil {
			t.Error(err)
		}
		if it.isSynced() || e.changes(ref) != 0 {
			t.Error("a stopped run was heard in the place of the next one")
		}
		it.mu.Lock()
		it.run = nil
		it.mu.Unlock()
	})
}
