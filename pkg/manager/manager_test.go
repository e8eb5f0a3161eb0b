package manager

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
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

func TestReadErrors(t *testing.T) {
	ref := secretRef("a")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	fail := func(err error) func(*env) {
		return func(e *env) {
			e.refuseAll(err)
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

// TestARefusalIsTold: after a failed read, a subscriber is notified of a refusal, because the state may never come. Other failures pass and
// are not reported.
func TestARefusalIsTold(t *testing.T) {
	ref := secretRef("a")
	for _, tc := range []struct {
		name     string
		err      error
		reported bool
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
				if n := e.changes(ref); (n > 0) != tc.reported {
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
