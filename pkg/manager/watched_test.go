package manager

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestReferences: an object is watched as long as a volume names it, however often, whichever pods the volumes have.
func TestReferences(t *testing.T) {
	a, b := secretRef("a"), configMapRef("a")
	inEachBubble(t, func(t *testing.T, e *env) {
		for i, step := range []struct {
			pod, volumeID string
			refs          []volume.Ref // nil unregisters the volume
			watched       map[volume.Ref]int
		}{
			{"p", "v", []volume.Ref{a, b, a}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "w", []volume.Ref{a}, map[volume.Ref]int{a: 1, b: 1}},
			{"q", "v", []volume.Ref{a}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "v", []volume.Ref{b}, map[volume.Ref]int{a: 1, b: 1}},
			{"p", "w", nil, map[volume.Ref]int{a: 1, b: 1}},
			{"q", "v", nil, map[volume.Ref]int{b: 1}},
			{"q", "v", nil, map[volume.Ref]int{b: 1}},
			{"p", "v", []volume.Ref{}, nil},
			{"p", "v", []volume.Ref{a}, map[volume.Ref]int{a: 1}},
			{"p", "v", nil, nil},
		} {
			if step.refs == nil {
				e.UnregisterPod(pod(step.pod), step.volumeID)
			} else {
				e.RegisterPod(pod(step.pod), step.volumeID, step.refs)
			}
			if all := slices.Collect(e.Objects); len(all) != len(step.watched) {
				t.Errorf("after step %d %d objects are reported, want %d", i, len(all), len(step.watched))
			}
			for _, ref := range []volume.Ref{a, b} {
				e.wantWatches(ref, step.watched[ref])
				if isRegistered := e.item(ref) != nil; isRegistered != (step.watched[ref] > 0) {
					t.Errorf("after step %d %s is registered: %t", i, ref, isRegistered)
				}
			}
		}
	})
}

// TestAReferenceThatStays: when a volume is registered again, what it still names stays known, and is not requested again.
func TestAReferenceThatStays(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.MarkMounted(pod("p"), "v")
		e.wantGet(ref, v, "1")
		asked := len(e.api.requests(ref))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref, configMapRef("b")})
		if obj, err := e.GetObject(ref); err != nil || obj.Version != v {
			t.Errorf("just registered again: got %v, %v, want %v", obj, err, v)
		}
		synctest.Wait()
		if n := len(e.api.requests(ref)) - asked; n != 0 {
			t.Errorf("it was requested %d times more", n)
		}
	})
}

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
		{"absent", func(e *env) { e.api.delete(ref); after(idleTime + time.Minute) }, 0},
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
		e.wantCached(0) // the memory is free for others
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

func TestImmutableStopsTheWatch(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name          string
		first, second func(e *env)
		want          int
	}{
		{"absent, then mutable", nil, putMutable, 1},
		{"absent, then immutable", nil, putImmutable, 0},
		{"mutable, and stays so", putMutable, nil, 1},
		{"mutable, then immutable", putMutable, putImmutable, 0},
		{"immutable from the start", putImmutable, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				if tc.first != nil {
					tc.first(e)
				}
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				_, _ = e.GetObject(ref)
				if tc.second != nil {
					tc.second(e)
				}
				synctest.Wait()
				_, _ = e.GetObject(ref)
				e.wantWatches(ref, tc.want)
				if s := e.status(); s.State != Present || s.Watched != (tc.want > 0) {
					t.Errorf("the object is %s, watched %t", s.State, s.Watched)
				}
				if _, err := e.GetObject(ref); err != nil {
					t.Errorf("GetObject: %v", err)
				}
				after(2 * idleTime) // its data stays, without a watch
				if _, err := e.GetObject(ref); (err == nil) != (tc.want == 0) {
					t.Errorf("Lookup after the idle time: %v", err)
				}
			})
		})
	}
}

func putMutable(e *env)   { e.api.put(secret("a", "1")) }
func putImmutable(e *env) { e.api.put(immutableSecret("a", "1")) }

// immutableInUse puts an immutable object and reads it until its watch has stopped.
func immutableInUse(e *env, ref volume.Ref) {
	v := e.api.put(immutableSecret(ref.Name, "old"))
	e.RegisterPod(pod("first"), "v", []volume.Ref{ref})
	e.wantGet(ref, v, "old")
	e.wantWatches(ref, 0)
	e.changes(ref)
}

// TestReadAgain: a volume that shows a newer version has an immutable object read again, although no new pod has come.
func TestReadAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		immutableInUse(e, ref)
		e.api.delete(ref)
		v := e.api.put(secret("a", "new"))
		synctest.Wait()
		e.wantWatches(ref, 0)
		e.ReadAgain(pod("first"), []volume.Ref{ref}) // it has just been read
		synctest.Wait()
		e.wantWatches(ref, 0)
		after(againTime)
		e.ReadAgain(pod("first"), []volume.Ref{secretRef("other"), ref})
		synctest.Wait()
		e.wantGet(ref, v, "new")
		e.wantWatches(ref, 1)
	})
}
