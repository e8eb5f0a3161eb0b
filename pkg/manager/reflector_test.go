package manager

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// maxPause is the longest pause after a failure to connect, plus that of the object before it.
	maxPause = 6 * time.Second
	// maxOwnPause is the longest pause of one object, or of an account.
	maxOwnPause = maxBackoff
)

// TestWatchesThatBreakTogetherReconnectApart counts how many of many watches are opened at the same moment: after a refusal with a Retry-After,
// as by an API server that has just started, and when they have ended together.
func TestWatchesThatBreakTogetherReconnectApart(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		const retryAfter = 10 * time.Second
		refs := hundred()
		wantApart := func(what string, least time.Duration) {
			t.Helper()
			before := time.Now()
			moments := func() int {
				at := map[time.Time]bool{}
				for _, ref := range refs {
					if sent := e.api.requests(ref); sent[len(sent)-1].at.After(before) {
						at[sent[len(sent)-1].at] = true
					}
				}
				return len(at)
			}
			if after(least - time.Millisecond); moments() > 0 {
				t.Errorf("%s: watches were opened again after less than %v", what, least)
			}
			after(2 * reflectorPause)
			if n := moments(); n < len(refs)/2 {
				t.Errorf("%s: %d watches were opened again at only %d moments", what, len(refs), n)
			}
		}
		e.refuseAll(apierrors.NewTooManyRequests("storage is (re)initializing", int(retryAfter.Seconds())))
		e.RegisterPod(pod("p"), "v", refs)
		e.MarkMounted(pod("p"), "v")
		after(0)
		wantApart("a refusal", retryAfter)
		e.refuseAll(nil)
		after(time.Minute)
		e.api.closeWatches()
		wantApart("the end of the watches", reflectorPause)
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
		if pause := pauseAfter(calmTime + time.Second); pause > 2*reflectorPause {
			t.Errorf("after a watch that lasted the pause is %s", pause)
		}
	})
}

// TestRequestsWhileAllFail: however long an API server fails, each object is requested now and then, after the longest pause.
func TestRequestsWhileAllFail(t *testing.T) {
	// As many short pauses as there are, and then the longest. A round is at most three requests: a watch and two lists.
	const objects, lasts, most = 8, 10 * time.Minute, 3 * (10 + 10*60/15)
	for name, err := range map[string]error{"forbidden": errForbidden, "unauthorized": errUnauthorized, "failed": apierrors.NewInternalError(errors.New("etcd"))} {
		t.Run(name, func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				var refs []volume.Ref
				for i := range objects {
					ref := secretRef(fmt.Sprint("s", i))
					e.api.put(secret(ref.Name, "1"))
					refs = append(refs, ref)
				}
				e.RegisterPod(pod("p"), "v", refs)
				after(2 * time.Second)
				before := map[volume.Ref]int{}
				for _, ref := range refs {
					before[ref] = len(e.api.requests(ref))
				}
				e.answerWith(err)
				for range lasts / testResync {
					e.Refresh(refs) // as each resync does
					e.readFor(testResync, refs)
				}
				all := 0
				for _, ref := range refs {
					n := len(e.api.requests(ref)) - before[ref]
					if all += n; n > most {
						t.Errorf("%d requests of %s in %s, want %d at most", n, ref, lasts, most)
					}
				}
				if all < 10 { // one account's tokens may be refused, so that all its objects wait together
					t.Errorf("%d requests in %s", all, lasts)
				}
			})
		})
	}
}

type rewatches struct{ count atomic.Int64 }

func (r *rewatches) Rewatched(volume.Kind) { r.count.Add(1) }

// TestAWatchLastsItsTime: a watch that starts with the state, and one that continues where that ended, stay open for as long as the server
// was asked to keep them. The observer hears of each watch after the first.
func TestAWatchLastsItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again, ref := &rewatches{}, secretRef("a")
		e := newEnv(t, Options{ChangeDetection: Watch, Observer: again})
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		wantAgain := func(when string, want int64) {
			t.Helper()
			synctest.Wait()
			if got := again.count.Load(); got != want {
				t.Errorf("%s %d watches were opened again, want %d", when, got, want)
			}
		}
		// wantItsTime has the last watch end by itself. It was opened as the nth again.
		wantItsTime := func(withState bool, nth int64) {
			t.Helper()
			var last apiRequest
			e.api.set(func() { last = e.api.seen[len(e.api.seen)-1] })
			seconds, err := strconv.Atoi(last.timeout)
			if err != nil || !last.watch || last.initial != withState {
				t.Fatalf("the last request: %+v, %v", last, err)
			}
			for range seconds - 5 {
				after(time.Second)
				_, _ = e.GetObject(ref) // or it would end as idle
			}
			wantAgain("just before its time is up", nth)
			after(10 * time.Second)
			wantAgain("after its time", nth+1)
			if e.api.set(func() { last = e.api.seen[len(e.api.seen)-1] }); !last.initial { // etcd may have been restored meanwhile
				t.Errorf("the watch after one that lasted its time doesn't start with the state: %+v", last)
			}
		}
		after(2 * time.Second)
		wantAgain("at first", 0)
		wantItsTime(true, 0)
		e.api.closeWatches()
		after(2 * time.Second)
		wantAgain("after an end", 2)
		wantItsTime(false, 2)
		e.stop()
	})
}

// TestAPublishEndsAPause: an object whose state is not known is requested at once for a new pod, also in the pause after a failure, and one
// that is known is not. The pause that the API server has asked for does not end.
func TestAPublishEndsAPause(t *testing.T) {
	for _, test := range []struct {
		err  error
		ends bool
	}{{errForbidden, true}, {apierrors.NewTooManyRequests("busy", 30), false}} {
		inBubble(t, func(t *testing.T, e *env) {
			ref := secretRef("a")
			v := e.api.put(secret("a", "1"))
			e.refuseAll(test.err)
			e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
			after(2 * time.Minute) // so that the pauses are long
			for n := len(e.api.requests(ref)); len(e.api.requests(ref)) == n; after(time.Second) {
			}
			e.refuseAll(nil)
			e.RegisterPod(pod("q"), "v", []volume.Ref{ref})
			after(100 * time.Millisecond)
			if _, err := e.Manager.GetObject(pod("q"), ref); (err == nil) != test.ends {
				t.Errorf("after %v, a new pod gets %v", test.err, err)
			}
			after(time.Minute + maxBackoff)
			e.wantStatus(Present, v, time.Since(e.status().LastConfirmed), true)
			before := len(e.api.requests(ref))
			e.RegisterPod(pod("r"), "v", []volume.Ref{ref})
			e.wantWatches(ref, 1)
			if n := len(e.api.requests(ref)) - before; n != 0 {
				t.Errorf("%d requests for an object that is known", n)
			}
		})
	}
}

// TestAPublishSkipsAPause: a request that fails is repeated at once for a pod that came meanwhile.
func TestAPublishSkipsAPause(t *testing.T) {
	for pods, want := range map[string]int{"p": 1, "pq": 2} {
		inBubble(t, func(t *testing.T, e *env) {
			ref, gate := secretRef("a"), make(chan struct{})
			e.refuseAll(apierrors.NewInternalError(errors.New("busy")))
			e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
			for _, uid := range pods {
				e.RegisterPod(pod(string(uid)), "v", []volume.Ref{ref})
				after(time.Second)
			}
			close(gate)
			after(10 * time.Millisecond)
			if got := len(e.api.requests(ref)); got != want {
				t.Errorf("pods %s: %d requests, want %d", pods, got, want)
			}
		})
	}
}
