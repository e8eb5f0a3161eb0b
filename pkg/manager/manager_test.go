package manager

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

func TestRequestSelectsOneObjectAndAsksForThePresent(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.api.set(func() { e.api.noWatchList = true })
		v := e.api.put(secret("a", "1"))
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantWatches(ref, 1)
		e.wantGet(ref, v, "1")
		got := e.api.requests(ref)
		if len(got) != 3 || !got[0].initial || got[1].watch || !got[2].watch || got[2].initial {
			t.Fatalf("got requests %v, want a list by watch, then a list, then a watch", got)
		}
		if got[0].rv != "" || got[1].rv != "" {
			t.Errorf("the first state was asked at resourceVersion %q and %q, want the present one", got[0].rv, got[1].rv)
		}
		if got[2].rv != "101" {
			t.Errorf("watched from %q, want from the list's resourceVersion 101", got[2].rv)
		}
		for _, r := range []apiRequest{got[0], got[2]} {
			var seconds int
			if _, err := fmt.Sscan(r.timeout, &seconds); err != nil || seconds < 1800 || seconds > 3600 {
				t.Errorf("%+v: want a timeout from 1800 to 3600 s", r)
			}
		}
	})
}

// TestReadErrors: a read says why nothing is known. A subscriber is notified of a refusal, because the state may never come. Other failures
// pass and are not reported.
func TestReadErrors(t *testing.T) {
	ref := secretRef("a")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	for _, tc := range []struct {
		name     string
		err      error
		check    func(error) bool
		text     string
		reported bool
	}{
		{"forbidden", forbidden, apierrors.IsForbidden, `Secret "ns/a": not synced with the API server yet: secrets "a" is forbidden: no`, true},
		{"unauthorized", apierrors.NewUnauthorized("no"), is(ErrNotSynced), "", true},
		{"out of reach", syscall.ECONNREFUSED, is(syscall.ECONNREFUSED), "connection refused", false},
		{"connection broken", syscall.ECONNRESET, is(syscall.ECONNRESET), "connection reset", false},
		{"overloaded", apierrors.NewTooManyRequests("no", 0), is(ErrNotSynced), "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				gate := make(chan struct{})
				e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
				e.refuseAll(tc.err)
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				e.wantGetErr(ref, ErrNotSynced)
				close(gate)
				after(time.Second)
				if n := e.changes(ref); (n > 0) != tc.reported {
					t.Errorf("heard %d times", n)
				}
				_, err := e.soon(pod("p"), ref)
				if !tc.check(err) || !errors.Is(err, ErrNotSynced) || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("got %v, want it to contain %q", err, tc.text)
				}
				if apierrors.IsForbidden(err) != (tc.name == "forbidden") {
					t.Errorf("got %v", err)
				}
				if !tc.reported {
					return
				}
				after(4 * denialTime) // an object that never had an answer is denied too, once that lasts
				e.wantDenied(ref, true)
				if e.changes(ref) == 0 {
					t.Error("the denial was not reported")
				}
				late := secretRef("late")
				e.RegisterPod(pod("p"), "w", []volume.Ref{late})
				synctest.Wait()
				e.wantDenied(late, tc.name == "unauthorized") // no request for it is sent before the token is good
			})
		})
	}
}

func TestUnknownObjects(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		if _, err := e.GetObject(ref); !errors.Is(err, ErrNotRegistered) || err.Error() != `object "ns"/"a" not registered` {
			t.Errorf("not registered: %v", err)
		}
		if _, err := e.read(pod("p"), "v", ref); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `secrets "a" not found`) {
			t.Errorf("absent: %v", err)
		}
	})
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

func TestNewRefusesBadOptions(t *testing.T) {
	api := newAPIServer(t)
	client, paced := api.client(), api.paced
	for _, tc := range []struct {
		name, want string
		opts       Options
	}{
		{"no client", "Client and Requests are required", Options{Requests: paced, ResyncInterval: time.Minute}},
		{"no requests", "Client and Requests are required", Options{Client: client, ResyncInterval: time.Minute}},
		{"no resync interval", "must be more than zero, not 0s", Options{Client: client, Requests: paced}},
		{"no such change detection", `ChangeDetection "watch" is none of Watch, Cache and Get`, Options{Client: client, Requests: paced, ResyncInterval: time.Minute, ChangeDetection: "watch"}},
		{"no node for its TTL", "Nodes and NodeName are required", Options{Client: client, Requests: paced, ResyncInterval: time.Minute, ChangeDetection: Cache}},
		{"negative resync interval", "must be more than zero, not -1s", Options{Client: client, Requests: paced, ResyncInterval: -time.Second}},
	} {
		if _, err := New(tc.opts); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want it to contain %q", tc.name, err, tc.want)
		}
	}
}

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

func (e *env) status() ObjectStatus {
	e.t.Helper()
	synctest.Wait()
	all := slices.Collect(e.Objects)
	if len(all) != 1 {
		e.t.Fatalf("%d objects, want 1", len(all))
	}
	return all[0]
}

func (e *env) wantStatus(state ObjectState, version volume.Version, proven time.Duration, followed bool) {
	e.t.Helper()
	got := e.status()
	age := time.Since(got.LastConfirmed)
	if got.State != state || got.Version != version || age != proven || got.Watched != followed {
		e.t.Errorf("got %s, %v, proven %s ago, followed %t, want %s, %v, %s, %t",
			got.State, got.Version, age, got.Watched, state, version, proven, followed)
	}
	if (got.Err != nil) != (state == Unknown || state == Denied) {
		e.t.Errorf("a %s object has the error %v", got.State, got.Err)
	}
}

// TestObjects: an event, a bookmark or a state proves an object current. Time or an open watch alone do not.
func TestObjects(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref, none := secretRef("a"), volume.Version{}
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return make(chan struct{}) } })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		const unanswered = answerTime + time.Second
		after(unanswered)
		if got := e.status(); got.State != Unknown || !got.LastConfirmed.IsZero() || time.Since(got.Since) != unanswered || !errors.Is(got.Err, ErrNotSynced) || !got.Watched {
			t.Errorf("before the first answer: %+v", got)
		}
		e.api.set(func() { e.api.hold = nil })
		after(answerTime + maxPause) // the request in flight stays silent
		e.wantNotFound(ref)
		before := time.Since(e.status().LastConfirmed)
		e.wantStatus(Absent, none, before, true)

		v := e.api.put(secret("a", "1"))
		e.wantStatus(Present, v, 0, true)
		after(bookmarkInterval - time.Second)
		e.wantStatus(Present, v, bookmarkInterval-time.Second, true)
		after(time.Second)
		e.wantStatus(Present, v, 0, true)

		e.api.set(func() { e.api.lost = true })
		e.api.closeWatches()
		after(2 * time.Minute) // the next watch continues from there, and brings nothing
		e.wantStatus(Present, v, 2*time.Minute, true)
		if e.status().Stale {
			t.Error("an object whose watch is open and quiet is stale")
		}

		forbidden := apierrors.NewForbidden(schema.GroupResource{}, "a", errors.New("no"))
		e.api.set(func() { e.api.lost, e.api.refuse = false, func(apiRequest) error { return forbidden } })
		e.api.closeWatches()
		after(denialTime + 2*maxPause)
		e.wantStatus(Denied, v, 2*time.Minute+denialTime+2*maxPause, true)
	})
}

// TestOnlyOneWatchIsRefused: when an account's requests are refused, an object whose watch works is not stale, and one whose watch has to
// be opened is.
func TestOnlyOneWatchIsRefused(t *testing.T) {
	inBubbleWith(t, Options{ChangeDetection: Watch, Accounts: true}, func(t *testing.T, e *env) {
		works, opens, reader := secretRef("works"), secretRef("opens"), podOf("p", "a")
		wantStale := func(when string, ref volume.Ref, want bool) {
			t.Helper()
			synctest.Wait()
			for s := range e.Objects {
				if s.Ref == ref && (s.Stale != want || !s.Watched) {
					t.Errorf("%s: %+v, want stale %t", when, s, want)
				}
			}
		}
		e.RegisterPod(reader, "v", []volume.Ref{works})
		wantStale("as soon as the watch is open", works, false)
		after(workingTime)
		wantStale("when it has lasted", works, false)
		e.refuseAll(errUnauthorized)
		e.RegisterPod(reader, "w", []volume.Ref{opens})
		after(time.Minute)
		wantStale("while the token is refused", works, false)
		wantStale("while the token is refused", opens, true)
		e.api.closeWatches()
		wantStale("when its watch has ended, too", works, true)
	})
}

// TestAWatchThatIsCutIsStale: if each watch is cut as soon as it is open, for example by a proxy, the object is stale.
func TestAWatchThatIsCutIsStale(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration
		event bool
		stale bool
	}{
		"just before it counts as working": {after: workingTime - 1, stale: true},
		"as soon as it counts as working":  {after: workingTime},
		"early, after an event":            {after: workingTime - 1, event: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *env) {
				ref := secretRef("a")
				e.api.put(secret("a", "1"))
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				synctest.Wait()
				if test.event {
					e.api.put(secret("a", "2"))
				}
				after(test.after)
				if s := e.status(); s.Stale || !s.Watched {
					t.Errorf("before the watch ends: %+v", s)
				}
				e.api.closeWatches()
				if s := e.status(); s.Stale != test.stale || !s.Watched {
					t.Errorf("when the watch has ended: %+v, want stale %t", s, test.stale)
				}
			})
		})
	}
}
