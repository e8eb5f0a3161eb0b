package manager

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func TestNothingRunsAfterRun(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		refs := map[string]volume.Ref{
			"watched": secretRef("watched"), "absent": secretRef("absent"), "idle": secretRef("idle"),
			"immutable": secretRef("immutable"), "unsynced": secretRef("unsynced"),
		}
		never := make(chan struct{})
		e.api.set(func() {
			e.api.hold = func(r apiRequest) <-chan struct{} {
				if r.ref == refs["unsynced"] {
					return never
				}
				return nil
			}
		})
		e.api.put(secret("watched", "1"))
		e.api.put(secret("idle", "1"))
		e.api.put(immutableSecret("immutable", "1"))
		for name, ref := range refs {
			e.RegisterPod(pod("p"), name, []volume.Ref{ref})
		}
		for range 10 {
			after(testResync)
			for _, name := range []string{"watched", "absent", "immutable", "unsynced"} {
				_, _ = e.GetObject(refs[name])
			}
		}
		start := time.Now()
		e.stop()
		if took := time.Since(start); took != 0 {
			t.Errorf("Run took %v to end", took)
		}
		before := len(e.api.seen)
		refs["late"] = secretRef("late")
		e.RegisterPod(pod("q"), "v", []volume.Ref{refs["late"], refs["immutable"]})
		for name, ref := range refs {
			if _, err := e.GetObject(ref); !errors.Is(err, ErrNotSynced) || !errors.Is(err, errShutdown) {
				t.Errorf("%s: GetObject: %v, want that the manager has shut down", name, err)
			}
		}
		after(time.Hour)
		if n := len(e.api.seen) - before; n > 0 {
			t.Errorf("%d requests after Run: %v", n, e.api.seen[before:])
		}
		e.UnregisterPod(pod("q"), "v")
		e.wantGetErr(refs["late"], ErrNotRegistered)
	})
}

// TestEverythingAtOnce is for the race detector: no order of calls may break the manager or leave a goroutine.
func TestEverythingAtOnce(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		var refs []volume.Ref
		for i := range 5 {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 200 {
					p, ref := pod(fmt.Sprint("p", (w+i)%6)), refs[(w*i)%len(refs)]
					e.RegisterPod(p, fmt.Sprint("v", i%3), refs[i%len(refs):])
					_, _ = e.GetObject(ref)
					e.Refresh(refs)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%5)*time.Millisecond)
					_, _ = e.await(ctx, ref)
					cancel()
					e.stopIdle(time.Now().Add(time.Second))
					e.UnregisterPod(p, fmt.Sprint("v", (i+1)%3))
					if i%10 == w {
						e.api.put(immutableSecret(ref.Name, "x"))
					}
					if w == 0 && i == 150 {
						e.stop()
					}
				}
			})
		}
		wg.Wait()
	})
}
