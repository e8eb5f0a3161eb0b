package manager

import (
	"testing"
	"testing/synctest"

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
