package manager

import (
	"errors"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func TestNothingRunsAfterRun(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		known, unsynced, late := secretRef("known"), secretRef("unsynced"), secretRef("late")
		never := make(chan struct{})
		e.api.set(func() {
			e.api.hold = func(r apiRequest) <-chan struct{} {
				if r.ref == unsynced {
					return never
				}
				return nil
			}
		})
		e.api.put(secret("known", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{known, unsynced})
		e.readFor(testResync, []volume.Ref{known, unsynced})
		start := time.Now()
		e.stop()
		if took := time.Since(start); took != 0 {
			t.Errorf("Run took %v to end", took)
		}
		before := len(e.api.seen)
		e.RegisterPod(pod("q"), "v", []volume.Ref{late})
		for _, ref := range []volume.Ref{known, unsynced, late} {
			if _, err := e.GetObject(ref); !errors.Is(err, ErrNotSynced) || !errors.Is(err, errShutdown) {
				t.Errorf("%s: GetObject: %v, want that the manager has shut down", ref, err)
			}
		}
		after(time.Hour)
		if n := len(e.api.seen) - before; n > 0 {
			t.Errorf("%d requests after Run: %v", n, e.api.seen[before:])
		}
		e.UnregisterPod(pod("q"), "v")
		e.wantGetErr(late, ErrNotRegistered)
	})
}
