package manager

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

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

func TestADeletedImmutableObjectIsWatchedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		immutableInUse(e, ref)
		e.api.delete(ref)
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.reader = pod("second")
		if _, err := e.awaitFor(t.Context(), e.reader, ref); !apierrors.IsNotFound(err) {
			t.Errorf("the new pod gets %v, want NotFound", err)
		}
		e.wantNotFound(ref)
		e.wantWatches(ref, 1)
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard of %d changes, want 1", n)
		}
		v := e.api.put(immutableSecret("a", "new"))
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard of %d changes, want 1", n)
		}
		e.wantGet(ref, v, "new")
		e.wantWatches(ref, 0)
	})
}

func TestReadsWaitForTheCheckOfAnImmutableObject(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, gate := secretRef("a"), make(chan struct{})
		immutableInUse(e, ref)
		e.api.delete(ref)
		v := e.api.put(immutableSecret("a", "new"))
		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no more"))
		e.api.set(func() {
			e.api.hold = func(apiRequest) <-chan struct{} { return gate }
			e.api.refuse = func(apiRequest) error { return forbidden }
		})
		e.RegisterPod(pod("second"), "v", []volume.Ref{ref})
		e.reader = pod("second")
		e.wantGetErr(ref, ErrNotSynced)
		close(gate)
		synctest.Wait()
		if _, err := e.GetObject(ref); !apierrors.IsForbidden(err) {
			t.Errorf("GetObject: %v, want Forbidden", err)
		}
		e.api.set(func() { e.api.refuse = nil })
		start := time.Now()
		obj, err := e.awaitFor(t.Context(), e.reader, ref)
		if err != nil || obj.Version != v {
			t.Errorf("the new pod gets %v, %v", obj, err)
		}
		if d := time.Since(start); d > maxPause {
			t.Errorf("synced %v after the server was back", d)
		}
		e.wantWatches(ref, 0)
	})
}
