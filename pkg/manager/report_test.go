package manager

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// TestAStaleServerNeverTakesDataBack has a server that answers from an old cache, and then catches up.
func TestAStaleServerNeverTakesDataBack(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name        string
		past        func(e *env) // the state of the server that lags behind
		now         func(e *env) // what has happened since
		noWatchList bool
	}{
		{"an older version", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.put(secret("a", "2")) }, false},
		{"an older version in a list", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.put(secret("a", "2")) }, true},
		{"absent", func(*env) {}, func(e *env) { e.api.put(secret("a", "2")) }, false},
		{"absent in a list", func(*env) {}, func(e *env) { e.api.put(secret("a", "2")) }, true},
		{"not deleted yet", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) { e.api.delete(ref) }, false},
		{"not recreated yet", func(e *env) { e.api.put(secret("a", "1")) }, func(e *env) {
			e.api.delete(ref)
			e.api.put(secret("a", "2"))
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				tc.past(e)
				e.api.set(func() { e.api.noWatchList = tc.noWatchList })
				past := e.api.rv
				tc.now(e)
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				want, wantErr := e.GetObject(ref)
				e.changes(ref)

				after(idleTime + time.Minute)
				e.api.set(func() { e.api.behind = past })
				e.wantGetErr(ref, ErrNotSynced) // restarts it
				for range 10 {
					after(time.Second)
					e.wantGetErr(ref, ErrNotSynced)
					e.wantGetErr(ref, errOlder)
					if n := e.api.watches(ref); n > 0 {
						t.Errorf("%d watches of refused answers are still open", n)
					}
				}
				if n := e.changes(ref); n != 0 {
					t.Errorf("heard of %d changes", n)
				}
				e.api.set(func() { e.api.behind = 0 })
				after(maxOwnPause)
				got, err := e.GetObject(ref)
				if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
					t.Errorf("got %v, %v, want %v, %v", got, err, want, wantErr)
				}
			})
		})
	}
}
