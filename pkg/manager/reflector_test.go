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

const (
	// maxPause is the longest pause after a failure to connect, with that of the object before it.
	maxPause = 6 * time.Second
	// maxOwnPause is the longest pause of one object, or of an account.
	maxOwnPause = maxBackoff
)

func TestRequestsThatFailArePaced(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no"))
	busy := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: 429, Reason: metav1.StatusReasonTooManyRequests,
	}}
	broken := apierrors.NewInternalError(errors.New("no"))
	for _, tc := range []struct {
		name   string
		err    error
		synced bool
		pause  time.Duration
	}{
		{"refused connection", syscall.ECONNREFUSED, false, maxPause},
		{"refused connection of a synced object", syscall.ECONNREFUSED, true, maxPause},
		{"broken connection", syscall.ECONNRESET, false, maxPause},
		{"broken connection of a synced object", syscall.ECONNRESET, true, maxPause},
		{"forbidden", forbidden, false, maxOwnPause},
		{"forbidden of a synced object", forbidden, true, maxOwnPause},
		{"too many requests", busy, false, maxOwnPause},
		{"too many requests of a synced object", busy, true, maxOwnPause},
		{"failing server", broken, false, maxOwnPause},
		{"failing server, of a synced object", broken, true, maxOwnPause},
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
				after(4 * time.Minute) // the object goes idle after five
				// One or two requests an attempt, as a list follows a watch; some more of them
				// in the first minute.
				least, most := int(4*time.Minute/tc.pause), int(4*(4*time.Minute/tc.pause)+4*(time.Minute/maxPause)+2*9)
				if n := len(e.api.requests(ref)); n < least || n > most {
					t.Errorf("%d requests in four minutes, want %d to %d", n, least, most)
				}
				e.api.set(func() { e.api.refuse = nil })
				v := e.api.put(secret("a", "back"))
				after(tc.pause)
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

// TestASilentServer: whoever holds the connection and does not answer is asked again.
func TestASilentServer(t *testing.T) {
	for name, silence := range map[string]func(s *apiServer, silent bool){
		"before the answer begins": func(s *apiServer, silent bool) {
			s.hold = nil
			if silent {
				s.hold = func(apiRequest) <-chan struct{} { return make(chan struct{}) }
			}
		},
		"a list": func(s *apiServer, silent bool) {
			s.noWatchList, s.hold = true, nil
			if silent {
				s.hold = func(r apiRequest) <-chan struct{} {
					if r.watch {
						return nil
					}
					return make(chan struct{})
				}
			}
		},
		"before the end of the state": func(s *apiServer, silent bool) { s.unfinished = silent },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				v := e.api.put(secret("a", "1"))
				e.api.set(func() { silence(e.api, true) })
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				after(answerTime / 2)
				e.api.set(func() { silence(e.api, false) }) // the request under way stays silent
				after(answerTime/2 + maxPause)
				e.wantKnown(ref, v, "1")
				e.wantWatches(ref, 1)
				v = e.api.put(secret("a", "2"))
				after(2 * answerTime) // no bound holds for a watch that has answered
				e.wantKnown(ref, v, "2")
				sent := len(e.api.requests(ref))
				after(10 * answerTime)
				if n := len(e.api.requests(ref)) - sent; n > 0 {
					t.Errorf("%d more requests", n)
				}
			})
		})
	}
}

// TestRetryAfter: a server's wish for a pause is obeyed, with a random time on top, but for a
// minute at most: the server may have recovered long before.
func TestRetryAfter(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds     int32
		least, most time.Duration
	}{
		"none":        {0, 100 * time.Millisecond, 300 * time.Millisecond},
		"3 seconds":   {3, 3 * time.Second, 4500 * time.Millisecond},
		"ten minutes": {600, time.Minute, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				v := e.api.put(secret("a", "1"))
				busy := &apierrors.StatusError{ErrStatus: metav1.Status{
					Status: metav1.StatusFailure, Code: 429, Reason: metav1.StatusReasonTooManyRequests,
					Details: &metav1.StatusDetails{RetryAfterSeconds: tc.seconds},
				}}
				begin := time.Now()
				e.api.set(func() { e.api.refuse = func(apiRequest) error { return busy } })
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				e.api.set(func() { e.api.refuse = nil })
				for _, err := e.GetObject(ref); errors.Is(err, ErrNotSynced); _, err = e.GetObject(ref) {
					after(100 * time.Millisecond)
				}
				e.wantGet(ref, v, "1")
				if took := time.Since(begin); took < tc.least || took > tc.most {
					t.Errorf("it took %s, want %s to %s", took, tc.least, tc.most)
				}
			})
		})
	}
}

// TestALostWatchIsRepaired: what a watch has failed to bring, which a proxy keeps open, comes with the next one.
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
