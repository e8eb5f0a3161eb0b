package manager

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

const maxPause = 5 * time.Second

func TestTooLargeResourceVersion(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		synctest.Wait()
		after(idleTime + time.Minute)
		// A server that starts knows no resourceVersion yet that a client names.
		start := time.Now()
		e.api.set(func() {
			e.api.refuse = func(apiRequest) error {
				if time.Since(start) < 4*time.Second {
					return tooLarge()
				}
				return nil
			}
		})
		e.wantGet(ref, v, "1") // waits ten seconds at the most
	})
}

func TestRequestsThatFailArePaced(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no"))
	busy := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 429, Reason: metav1.StatusReasonTooManyRequests,
	}}
	for _, tc := range []struct {
		name   string
		err    error
		synced bool
	}{
		{"refused connection", syscall.ECONNREFUSED, false},
		{"refused connection of a synced object", syscall.ECONNREFUSED, true},
		{"broken connection", syscall.ECONNRESET, false},
		{"broken connection of a synced object", syscall.ECONNRESET, true},
		{"forbidden", forbidden, false},
		{"forbidden of a synced object", forbidden, true},
		{"too many requests", busy, false},
		{"too many requests of a synced object", busy, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				if tc.synced {
					e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
					after(2 * time.Second)
				}
				e.api.set(func() { e.api.refuse = func(apiRequest) error { return tc.err } })
				if tc.synced {
					e.api.closeWatches()
				} else {
					e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				}
				after(time.Minute)
				if n := len(e.api.requests(ref)); n < 10 || n > 70 {
					t.Errorf("%d requests in a minute, want between one and two each 5 s, some more at first", n)
				}
				e.api.set(func() { e.api.refuse = nil })
				v := e.api.put(secret("a", "back"))
				after(maxPause)
				e.wantWatches(ref, 1)
				e.wantGet(ref, v, "back")
			})
		})
	}
}

// TestWatchesThatBreakTogetherReconnectApart counts how many watches of many are
// opened again at one moment.
func TestWatchesThatBreakTogetherReconnectApart(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		const objects = 100
		var refs []volume.Ref
		for i := range objects {
			refs = append(refs, secretRef(fmt.Sprint("s", i)))
		}
		e.RegisterPod(pod("p"), "v", refs)
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

// TestAWatchCutEachMinuteIsReopenedSoon is what a proxy with an idle timeout does.
func TestAWatchCutEachMinuteIsReopenedSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		for range 20 {
			after(time.Minute)
			e.api.closeWatches()
			v := e.api.put(secret("a", "x"))
			after(500 * time.Millisecond)
			e.wantGet(ref, v, "x")
		}
	})
}

// TestAfterAnOutageAnExpiredWatchCostsOnePause has an API server that comes back and has
// forgotten where the watches were: they have to be opened, and the object listed.
func TestAfterAnOutageAnExpiredWatchCostsOnePause(t *testing.T) {
	for _, noWatchList := range []bool{false, true} {
		t.Run(fmt.Sprint("noWatchList=", noWatchList), func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				e.api.set(func() { e.api.noWatchList = noWatchList })
				e.api.put(secret("a", "old"))
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				after(2 * time.Second)
				for range 20 {
					e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
					e.api.closeWatches()
					after(time.Minute)
					v := e.api.put(secret("a", "new"))
					e.api.set(func() { e.api.refuse, e.api.compacted = nil, e.api.rv })
					after(maxPause)
					e.wantWatches(ref, 1)
					e.wantGet(ref, v, "new")
				}
			})
		})
	}
}

// TestWatchesThatAlwaysExpireArePaced has an API server that never lets a watch go on.
func TestWatchesThatAlwaysExpireArePaced(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "x"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(2 * time.Second)
		expire := time.NewTicker(time.Second / 10)
		defer expire.Stop()
		e.api.set(func() { e.api.compacted = 1 << 30 })
		for end := time.Now().Add(time.Minute); time.Now().Before(end); <-expire.C {
			e.api.closeWatches()
		}
		if n := len(e.api.requests(ref)); n < 10 || n > 70 {
			t.Errorf("%d requests in a minute, want between one and two each 5 s, some more at first", n)
		}
	})
}
