package access

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/volume"
)

var web = volume.Account{Namespace: "shop", Name: "web"}

// mayHave is whether the account shop/web may get an object, by an answer of a minute at most.
func (w *world) mayHave(ref volume.Ref, want bool) {
	w.Helper()
	if got, err := w.tracker.ask(w.Context(), right{web, ref, "get"}, time.Minute); err != nil || got != want {
		w.Errorf("%s: %t, %v, want %t", ref, got, err, want)
	}
}

// An answer is as old as its question, and each account, object and verb has its own.
func TestAnswersAge(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.slow = 5 * time.Second })
		w.mayHave(own, true)
		w.set(func() { w.granted, w.slow = nil, 0 })
		w.mayHave(own, true)
		if n := w.takeAsked(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
		w.mayHave(other, false)
		for _, k := range []right{{volume.Account{Namespace: "shop", Name: "admin"}, own, "get"}, {web, own, "list"}} {
			if got, err := w.tracker.ask(w.Context(), k, time.Minute); got || err != nil {
				t.Errorf("%v: got %t, %v", k, got, err)
			}
		}
		if n := w.takeAsked(); n != 3 {
			t.Errorf("asked %d times, want thrice", n)
		}
		r := w.start("v1") // it keeps the answer from being forgotten
		defer r.Close()
		<-time.After(time.Minute - 1)
		w.set(func() { w.granted = map[volume.Ref]bool{own: true} })
		w.mayHave(own, true)
	})
}

// All who have one question share it, and its failure. Each next one asks again.
func TestOneQuestionAtATime(t *testing.T) {
	for _, err := range []error{nil, errAPI} {
		track(t, false, func(w *world) {
			w.set(func() { w.slow, w.err = 5*time.Second, err })
			begin := time.Now()
			for range 2 {
				var calls sync.WaitGroup
				for range 100 {
					calls.Go(func() {
						if _, got := w.tracker.ask(w.Context(), right{web, own, "get"}, 0); !errors.Is(got, err) {
							t.Errorf("got %v, want %v", got, err)
						}
					})
				}
				calls.Wait()
			}
			if n, took := w.takeAsked(), time.Since(begin); n != 2 || took != 10*time.Second {
				t.Errorf("asked %d times in %s", n, took)
			}
		})
	}
}

// Who asks and gives up doesn't take the answer from those who wait for it too; when nobody
// waits any more, the question ends, and the next caller has one of its own.
func TestAQuestionIsNobodysOwn(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.slow = 5 * time.Second })
		var calls sync.WaitGroup
		gaveUp := func(ctx context.Context) {
			if _, err := w.tracker.ask(ctx, right{web, own, "get"}, time.Minute); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		}
		for _, others := range []int{10, 0} {
			ctx, giveUp := context.WithCancel(w.Context())
			calls.Go(func() { gaveUp(ctx) })
			synctest.Wait()
			for range others {
				calls.Go(func() { w.mayHave(own, true) })
			}
			synctest.Wait()
			giveUp()
			calls.Wait()
			if n := w.takeAsked(); n != 1 {
				t.Errorf("asked %d times, want once", n)
			}
			<-time.After(time.Minute)
		}
		w.mayHave(own, true)
		if n := w.takeAsked(); n != 1 {
			t.Errorf("asked %d times, want once", n)
		}
	})
}

// Who asks anew is not content with an answer to an earlier question, and all who do share
// the next one.
func TestAskingAnew(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.slow = 5 * time.Second })
		var calls sync.WaitGroup
		calls.Go(func() { w.mayHave(own, true) })
		synctest.Wait()
		<-time.After(time.Second)
		for range 100 {
			calls.Go(func() {
				if got, err := w.tracker.ask(w.Context(), right{web, own, "get"}, 0); !got || err != nil {
					t.Errorf("got %t, %v", got, err)
				}
			})
		}
		calls.Wait()
		if n := w.takeAsked(); n != 2 {
			t.Errorf("asked %d times, want twice", n)
		}
	})
}

// A question that hangs ends, and one that panics fails without what it carried.
func TestAskThatHangsOrPanics(t *testing.T) {
	track(t, false, func(w *world) {
		w.set(func() { w.slow = time.Hour })
		begin := time.Now()
		if _, err := w.tracker.ask(w.Context(), right{web, own, "get"}, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != questionTime {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
		w.tracker.opts.Reviews.Ask = func(context.Context, volume.Account, volume.Ref, string) (bool, error) { panic(leak.Value) }
		if _, err := w.tracker.ask(w.Context(), right{web, own, "get"}, 0); !errors.Is(err, errPanicked) || strings.Contains(err.Error(), leak.Value) {
			t.Errorf("got %v", err)
		}
	})
}

// A new volume's pod needs every right, one that is mounted the last one.
func TestVerbs(t *testing.T) {
	for name, test := range map[string]struct {
		may           []string
		admitted, has bool
	}{
		"all":       {[]string{"get", "list", "watch"}, true, true},
		"not get":   {[]string{"list", "watch"}, false, true},
		"not watch": {[]string{"get", "list"}, false, false},
		"none":      {nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			track(t, false, func(w *world) {
				w.tracker.opts.Reviews = &Reviews{
					Ask: func(_ context.Context, _ volume.Account, _ volume.Ref, verb string) (bool, error) {
						return slices.Contains(test.may, verb), nil
					},
					Verbs: []string{"get", "list", "watch"},
				}
				r := w.tracker.New(wish("v1"))
				err := r.Admit(w.Context())
				if (err == nil) != test.admitted || err != nil && !strings.Contains(err.Error(), `may not get, list and watch Secret "platform/db"`) {
					t.Errorf("admitted: %v, want %t", err, test.admitted)
				}
				mounted := w.start("v2")
				defer mounted.Close()
				if synctest.Wait(); (mounted.Get(other).State == Absent) != test.has {
					t.Errorf("mounted: %+v, want %t", mounted.Get(other), test.has)
				}
			})
		})
	}
}
