package requests

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// order records the names of the accounts whose requests are sent, in order. Each request takes a millisecond.
type order struct {
	mu   sync.Mutex
	sent []string
}

func (o *order) answer(r *http.Request) (int, string, error) {
	o.mu.Lock()
	o.sent = append(o.sent, r.URL.Path[1:])
	o.mu.Unlock()
	<-time.After(time.Millisecond)
	return http.StatusOK, "", nil
}

// last returns how many requests were sent until the last one with a name in it.
func (o *order) last(name string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, sent := range slices.Backward(o.sent) {
		if sent == name {
			return i + 1
		}
	}
	return 0
}

// Pods take turns: a pod that waits for a thousand objects delays the requests of another one by a few of its own, and not by all of them.
// Requests for which no publish waits have a turn too.
func TestPodsTakeTurns(t *testing.T) {
	o := &order{}
	inBubble(t, o.answer, func(t *testing.T, _ *answers, _ *Requests, client http.RoundTripper) {
		var running sync.WaitGroup
		send := func(n int, name string, m Meta) {
			m.Account = account(name)
			for range n {
				running.Go(func() {
					if err := get(t.Context(), client, m); err != nil {
						t.Error(err)
					}
				})
			}
			synctest.Wait()
		}
		send(1000, "large", Meta{Urgent: true, For: For("large")})
		send(20, "other", Meta{Urgent: true, For: For("other")})
		send(1, "small", Meta{Urgent: true, For: For("small")})
		send(5, "ordinary", Meta{})
		send(1, "unnamed", Meta{Urgent: true})
		running.Wait()
		// The first slots are those of the large pod, and requests that get their slots at the same moment are sent in any order.
		const before = 2 * (ordinarySlots + urgentSlots)
		for name, most := range map[string]int{"small": before, "unnamed": before, "other": before + 20*5, "ordinary": before + 5*5, "large": 1027} {
			if n := o.last(name); n == 0 || n > most {
				t.Errorf("the last request of %s was number %d, want at most %d", name, n, most)
			}
		}
	})
}

// A request that another pod waits for too is sent when it is the turn of either.
func TestARequestOfTwoPods(t *testing.T) {
	o := &order{}
	inBubble(t, o.answer, func(t *testing.T, _ *answers, r *Requests, client http.RoundTripper) {
		var running sync.WaitGroup
		pods := make([]*Pods, 500)
		for i := range pods {
			pods[i] = For("large")
			running.Go(func() {
				m := Meta{Urgent: true, For: pods[i], Account: account(fmt.Sprint("object-", i))}
				if err := get(t.Context(), client, m); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // they wait in this order
		}
		pods[499].Add("small")
		pods[499].Add("small")
		running.Wait()
		if n := o.last("object-499"); n > 2*(ordinarySlots+urgentSlots) {
			t.Errorf("it was number %d", n)
		}
		r.slots.mu.Lock()
		defer r.slots.mu.Unlock()
		if s := &r.slots; s.free != ordinarySlots+urgentSlots || s.ordinary != ordinarySlots {
			t.Errorf("%d slots are free, %d for ordinary requests", s.free, s.ordinary)
		}
		for _, l := range r.slots.lines {
			if len(l.waiting) > 1 {
				t.Errorf("%d requests are left in a line", len(l.waiting))
			}
		}
	})
}

// An answer that is read as a whole keeps its slot until it is closed, or for a second.
func TestWholeAnswers(t *testing.T) {
	inBubble(t, status(http.StatusOK), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
		send := func(m Meta) *http.Response {
			req, err := http.NewRequestWithContext(With(t.Context(), m), http.MethodGet, "http://api/", http.NoBody)
			must(t, err)
			resp, err := client.RoundTrip(req)
			must(t, err)
			return resp
		}
		under := func(want int64) {
			t.Helper()
			if got := r.State().UnderWay; got != want {
				t.Errorf("%d requests have slots, want %d", got, want)
			}
		}
		first, second, watch := send(Meta{Whole: true}), send(Meta{Whole: true}), send(Meta{})
		under(2)
		for range 2 {
			if err := first.Body.Close(); err != nil {
				t.Error(err)
			}
			under(1)
		}
		after(slotTimeout)
		under(0)
		_, _ = second.Body.Close(), watch.Body.Close()
		under(0)
	})
}

// A request that ends while it waits takes no slot, and one that gets its slot at the same moment returns it.
func TestWaitingRequestsThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &turns{free: 1, ordinary: 1}
		first, err := s.take(t.Context(), true, For("a"))
		must(t, err)
		var running sync.WaitGroup
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			running.Go(func() {
				release, err := s.take(ctx, i%2 == 0, For(types.UID(fmt.Sprint(i%7))))
				if err == nil {
					release()
				}
			})
			running.Go(func() {
				<-time.After(time.Second)
				cancel()
			})
		}
		synctest.Wait()
		<-time.After(time.Second)
		first()
		running.Wait()
		if s.free != 1 || s.ordinary != 1 || len(s.lines) != 0 {
			t.Errorf("%d slots are free, %d for ordinary requests, %d lines are left", s.free, s.ordinary, len(s.lines))
		}
	})
}
