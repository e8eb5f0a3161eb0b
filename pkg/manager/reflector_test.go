package manager

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// maxPause is the longest pause after a failure to connect, plus that of the object before it.
	maxPause = 6 * time.Second
	// maxOwnPause is the longest pause of one object, or of an account.
	maxOwnPause = maxBackoff
)

// TestWatchesThatBreakTogetherReconnectApart counts how many of many watches are opened again at the same moment.
func TestWatchesThatBreakTogetherReconnectApart(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		const objects = 100
		var refs []volume.Ref
		for i := range objects {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs)
		e.Prioritize(pod("p"), refs) // a publish that is served then
		after(2 * time.Second)
		at := map[time.Time]int{}
		e.api.set(func() {
			e.api.refuse = func(apiRequest) error {
				e.mu.Lock()
				defer e.mu.Unlock()
				at[time.Now()]++
				return nil
			}
		})
		e.api.closeWatches()
		after(time.Second)
		if len(at) < objects/2 {
			t.Errorf("%d watches were opened again at only %d moments", objects, len(at))
		}
		for _, ref := range refs {
			e.wantWatches(ref, 1)
		}
	})
}

// TestALostWatchIsRepaired: what a watch behind a proxy failed to bring comes with the next watch.
func TestALostWatchIsRepaired(t *testing.T) {
	inBubble(t, func(_ *testing.T, e *env) {
		ref := secretRef("a")
		e.api.set(func() { e.api.lost = true })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantNotFound(ref)
		e.api.set(func() { e.api.lost = false }) // for the next watch
		v := e.api.put(secret("a", "1"))
		e.readFor(watchTime-time.Minute, []volume.Ref{ref})
		e.wantNotFound(ref)
		e.readFor(watchTime+2*time.Minute, []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		e.wantWatches(ref, 1)
	})
}

// TestPausesAfterACalmWatch: watches that end soon are opened again later and later, until one has lasted.
func TestPausesAfterACalmWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(2 * time.Second)
		// pauseAfter returns how long there is no watch after one that lasted so long.
		pauseAfter := func(lasts time.Duration) time.Duration {
			after(lasts)
			e.wantWatches(ref, 1)
			began := time.Now()
			e.api.closeWatches()
			for synctest.Wait(); e.api.watches(ref) == 0; after(10 * time.Millisecond) {
			}
			return time.Since(began)
		}
		for range 8 {
			pauseAfter(2 * time.Second)
		}
		if pause := pauseAfter(calmTime - time.Second); pause < 10*time.Second {
			t.Errorf("after many watches that ended soon the pause is %s", pause)
		}
		if pause := pauseAfter(calmTime + time.Second); pause > time.Second {
			t.Errorf("after a watch that lasted the pause is %s", pause)
		}
	})
}
