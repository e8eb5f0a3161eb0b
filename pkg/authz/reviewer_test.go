package authz

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

// Many volumes with one question that fails send it once, and know of the failure at once for
// a second. Then it is asked again.
func TestAFailureIsShared(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.delay = 5 * time.Second
		s.set(allowed, errAway)
		begin := time.Now()
		var calls sync.WaitGroup
		for range 100 {
			calls.Go(func() {
				if _, err := r.Allowed(t.Context(), web, ref("a"), time.Minute); !errors.Is(err, errAway) {
					t.Errorf("got %v", err)
				}
			})
		}
		calls.Wait()
		if n, took := s.takeAsked(), time.Since(begin); n != 1 || took != s.delay {
			t.Errorf("asked %d times in %s, want once in %s", n, took, s.delay)
		}
		after(failureAge - 1)
		if _, err := r.Allowed(t.Context(), web, ref("a"), 0); !errors.Is(err, errAway) || s.takeAsked() != 0 {
			t.Errorf("got %v, want the failure of a moment ago", err)
		}
		s.set(allowed, nil)
		after(1)
		want(t, r, web, ref("a"), true)
	})
}

// The lack of a token is no failure to share for a while: the next token may come at once.
func TestTheLackOfATokenIsNotKept(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.set(allowed, ErrNoToken)
		if _, err := r.Allowed(t.Context(), web, ref("a"), time.Minute); !errors.Is(err, ErrNoToken) {
			t.Errorf("got %v", err)
		}
		s.set(allowed, nil)
		want(t, r, web, ref("a"), true)
	})
}

// Who asks and gives up doesn't take the answer from those who wait for it too; when nobody
// waits any more, the request ends, and the next caller has one of its own.
func TestTheRequestIsNobodysOwn(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.delay = 5 * time.Second
		first, giveUp := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		gaveUp := func(ctx context.Context) {
			if _, err := r.Allowed(ctx, web, ref("a"), time.Minute); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		calls.Go(func() { gaveUp(first) })
		synctest.Wait()
		for range 10 {
			calls.Go(func() { want(t, r, web, ref("a"), true) })
		}
		synctest.Wait()
		giveUp()
		calls.Wait()
		if n := s.takeAsked(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}

		after(time.Minute)
		alone, leave := context.WithCancel(t.Context())
		calls.Go(func() { gaveUp(alone) })
		synctest.Wait()
		leave()
		calls.Wait()
		want(t, r, web, ref("a"), true)
		synctest.Wait()
		if n := s.takeAsked(); n != 2 || s.under() != 0 {
			t.Errorf("asked %d times, %d requests are under way; want two and none", n, s.under())
		}
	})
}

// Who asks anew is not content with an answer to an earlier question, and all who do share
// the next one.
func TestAskingAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, r *Reviewer) {
		s.delay = 5 * time.Second
		var calls sync.WaitGroup
		calls.Go(func() { want(t, r, web, ref("a"), true) })
		synctest.Wait()
		s.set(refused, nil)
		for range 100 {
			calls.Go(func() {
				if got, err := r.Allowed(t.Context(), web, ref("a"), 0); got || err != nil {
					t.Errorf("got %t, %v, want the answer of now", got, err)
				}
			})
		}
		calls.Wait()
		if n := s.takeAsked(); n != 2 {
			t.Errorf("asked %d times, want twice", n)
		}
	})
}

// A panic of an Ask is the caller's failure, and holds up nobody.
func TestAnAskThatPanics(t *testing.T) {
	r, err := New(Options{
		Ask:   func(context.Context, volume.Account, volume.Ref, string) (bool, error) { panic(leak.Value) },
		Verbs: []string{"get"}, Kept: "get", MaxAge: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Allowed(t.Context(), web, ref("a"), time.Minute); err == nil || strings.Contains(err.Error(), leak.Value) {
		t.Errorf("got %v", err)
	}
}
