package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/volume"
)

func TestObjectsFollowTheServer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantNotFound(ref)
		if n := e.changes(ref); n != 1 {
			t.Errorf("first sync: heard of %d changes, want 1", n)
		}
		step := func(what string, do func()) {
			t.Helper()
			do()
			if n := e.changes(ref); n != 1 {
				t.Errorf("%s: heard of %d changes, want 1", what, n)
			}
		}
		var v volume.Version
		step("create", func() { v = e.api.put(secret("a", "1")) })
		e.wantGet(ref, v, "1")
		step("update", func() { v = e.api.put(secret("a", "2")) })
		e.wantGet(ref, v, "2")
		step("delete", func() { e.api.delete(ref) })
		e.wantNotFound(ref)
		old := v.UID
		step("recreate", func() { v = e.api.put(secret("a", "3")) })
		e.wantGet(ref, v, "3")
		if v.UID == old {
			t.Error("the recreated object has the UID of the old one")
		}
		if got := e.api.requests(ref); len(got) != 1 {
			t.Errorf("got requests %v, want one", got)
		}
	})
}

func TestRequestSelectsOneObjectAndAsksForThePresent(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		e.api.set(func() { e.api.noWatchList = true })
		e.api.put(secret("a", "1"))
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantWatches(ref, 1)
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

func TestRegisterPodDoesNotWaitForTheNetwork(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		never := make(chan struct{})
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return never } })
		start := time.Now()
		e.RegisterPod(pod("p"), "v", []volume.Ref{secretRef("a"), configMapRef("a")})
		e.wantGetErr(secretRef("a"), ErrNotSynced)
		e.RegisterPod(pod("p"), "v", []volume.Ref{secretRef("b")})
		e.UnregisterPod(pod("p"), "v")
		if d := time.Since(start); d != 0 {
			t.Errorf("registering took %v of an API server that doesn't answer", d)
		}
	})
}

func TestNamespacesAndKindsHoldTheirOwnData(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		here, there := secret("a", "here"), secret("a", "there")
		there.Namespace = "other"
		a, b, c := secretRef("a"), volume.Ref{Kind: volume.Secret, Namespace: "other", Name: "a"}, configMapRef("a")
		va, vb, vc := e.api.put(here), e.api.put(there), e.api.put(configMap("a", "map"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{a, b, c})
		e.wantGet(a, va, "here")
		e.wantGet(b, vb, "there")
		e.wantGet(c, vc, "map")
	})
}

func TestManyRegistrationsMakeOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		v := e.api.put(secret("a", "1"))
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				e.RegisterPod(pod(fmt.Sprint("p", i)), "v", []volume.Ref{ref})
				e.wantGet(ref, v, "1")
			})
		}
		wg.Wait()
		e.wantWatches(ref, 1)
		for i := range 99 {
			e.UnregisterPod(pod(fmt.Sprint("p", i)), "v")
		}
		e.wantWatches(ref, 1)
		if got := e.api.requests(ref); len(got) != 1 {
			t.Errorf("got requests %v, want one", got)
		}
		e.UnregisterPod(pod("p99"), "v")
		e.wantWatches(ref, 0)
	})
}

func TestThousandObjectsArrive(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		const objects, workers = 1000, 10
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for i := w; i < objects; i += workers {
					name := fmt.Sprint("s", i)
					v := e.api.put(secret(name, name))
					e.RegisterPod(pod(name), "v", []volume.Ref{secretRef(name)})
					e.wantGet(secretRef(name), v, name)
				}
			})
		}
		wg.Wait()
	})
}

func TestReadErrors(t *testing.T) {
	ref := secretRef("a")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	fail := func(err error) func(*env) {
		return func(e *env) {
			e.api.set(func() { e.api.refuse = func(apiRequest) error { return err } })
			e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		}
	}
	for _, tc := range []struct {
		name  string
		do    func(e *env)
		check func(error) bool
		text  string
	}{
		{"not registered", func(*env) {}, is(ErrNotRegistered), `object "ns"/"a" not registered`},
		{"absent", func(e *env) { e.RegisterPod(pod("p"), "v", []volume.Ref{ref}) }, apierrors.IsNotFound, `secrets "a" not found`},
		{"forbidden", fail(forbidden), apierrors.IsForbidden, `Secret "ns/a": not synced with the API server yet: secrets "a" is forbidden: no`},
		{"forbidden is not synced", fail(forbidden), is(ErrNotSynced), ""},
		{"out of reach", fail(syscall.ECONNREFUSED), is(syscall.ECONNREFUSED), "connection refused"},
		{"connection broken", fail(syscall.ECONNRESET), is(syscall.ECONNRESET), "connection reset"},
		{"out of reach is not synced", fail(syscall.ECONNREFUSED), is(ErrNotSynced), ""},
		{"out of reach is not forbidden", fail(syscall.ECONNREFUSED), not(apierrors.IsForbidden), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				tc.do(e)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := e.await(ctx, ref)
				if !tc.check(err) || !strings.Contains(err.Error(), tc.text) {
					t.Errorf("got %v, want it to contain %q", err, tc.text)
				}
				if never := ctx.Err() != nil; never != errors.Is(err, ErrNotSynced) {
					t.Errorf("it never synced: %v, error %v", never, err)
				}
			})
		})
	}
}

// TestARefusalIsTold has a subscriber hear of a refusal, once it has asked: what it
// waits for may never come. Other failures pass, and are no news.
func TestARefusalIsTold(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name string
		err  error
		told bool
	}{
		{"forbidden", apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no")), true},
		{"unauthorized", apierrors.NewUnauthorized("no"), true},
		{"out of reach", syscall.ECONNREFUSED, false},
		{"overloaded", apierrors.NewTooManyRequests("no", 0), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				gate := make(chan struct{})
				e.api.set(func() {
					e.api.hold = func(apiRequest) <-chan struct{} { return gate }
					e.api.refuse = func(apiRequest) error { return tc.err }
				})
				e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
				e.wantGetErr(ref, ErrNotSynced)
				close(gate)
				after(time.Second)
				if n := e.changes(ref); (n > 0) != tc.told {
					t.Errorf("heard %d times", n)
				}
			})
		})
	}
}

func is(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }

func not(check func(error) bool) func(error) bool {
	return func(err error) bool { return err != nil && !check(err) }
}

func TestTheSyncIsToldAtOnce(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref, gate := secretRef("a"), make(chan struct{})
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return gate } })
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		time.AfterFunc(7*time.Second, func() { close(gate) })
		start := time.Now()
		e.wantGet(ref, v, "1")
		if d := time.Since(start); d != 7*time.Second {
			t.Errorf("heard of the sync after %v, want it at that moment, 7s", d)
		}
	})
}

func TestGetObjectThatFailedIsToldOfTheSync(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.api.put(secret("a", "1"))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.changes(ref)
		after(2 * idleTime)
		e.wantGetErr(ref, ErrNotSynced)
		if n := e.changes(ref); n != 1 {
			t.Errorf("heard of %d changes after a GetObject that came too early, want 1", n)
		}
	})
}

// TestARegistrationStartsAnew right after the last reference went, while the request of before
// has no answer.
func TestARegistrationStartsAnew(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref, never := secretRef("a"), make(chan struct{})
		e.api.set(func() { e.api.hold = func(apiRequest) <-chan struct{} { return never } })
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGetErr(ref, ErrNotSynced)
		synctest.Wait()
		e.UnregisterPod(pod("p"), "v")
		e.wantGetErr(ref, ErrNotRegistered)
		e.api.set(func() { e.api.hold = nil })
		v := e.api.put(secret("a", "1"))
		e.RegisterPod(pod("q"), "v", []volume.Ref{ref})
		e.wantGet(ref, v, "1")
		e.wantWatches(ref, 1)
	})
}
