package requests

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
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

// TestHandshakes: without OneAtATime, net/http makes a handshake for each request that finds no free stream. An HTTP/2 connection has 100, as
// to the API server. Client and server talk in memory, so that a bubble's fake time passes only while both wait.
func TestHandshakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		watch := func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		server := &httptest.Server{Listener: listener, EnableHTTP2: true, Config: &http.Server{
			Handler: http.HandlerFunc(watch), HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100},
		}}
		server.StartTLS()
		var dials, failed atomic.Int64
		base := utilnet.SetTransportDefaults(&http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: OneAtATime(func(ctx context.Context, _, _ string) (net.Conn, error) {
				dials.Add(1)
				return listener.DialContext(ctx)
			}),
		})
		client := New().Wrap(base, true)
		ctx, cancel := context.WithCancel(With(t.Context(), ordinary))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
		must(t, err)
		var opened, all sync.WaitGroup
		for range 500 {
			opened.Add(1)
			all.Go(func() {
				resp, err := client.RoundTrip(req.Clone(ctx))
				opened.Done()
				if err != nil {
					failed.Add(1)
					return
				}
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
			})
		}
		opened.Wait()
		if n := dials.Load(); n > 6 || failed.Load() > 0 {
			t.Errorf("%d handshakes for 500 watches, %d failed", n, failed.Load())
		}
		cancel()
		all.Wait()
		base.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
		after(time.Minute) // net/http's dials outlive their requests
	})
}

// TestOneAtATime: a request dials when the one before has its connection, has failed, or has tried for some seconds, as with a server that
// accepts connections and stalls. One that finds another connection meanwhile, because a stream of it is free, does not dial. One whose
// connection has ended, because the server has said that it goes away, waits for its turn too.
func TestOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		dial := OneAtATime(func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		// start begins a dial for a request. It has a connection once found is called, or had one before if it is sent again.
		start := func(isSentAgain bool) (found, fail func(), result chan error) {
			ctx, cancel := context.WithCancel(t.Context())
			ctx, _, _ = traceConnection(ctx)
			found = func() { httptrace.ContextClientTrace(ctx).GotConn(httptrace.GotConnInfo{}) }
			if isSentAgain {
				found()
			}
			result = make(chan error, 1)
			go func() {
				_, err := dial(ctx, "", "")
				result <- err
			}()
			synctest.Wait()
			return found, cancel, result
		}
		want := func(when string, n int64) {
			t.Helper()
			synctest.Wait()
			if got := dials.Load(); got != n {
				t.Errorf("%s: %d dials, want %d", when, got, n)
			}
		}
		_, failFirst, _ := start(false)
		defer failFirst()
		foundSecond, failSecond, _ := start(false)
		defer failSecond()
		foundThird, failThird, third := start(false)
		defer failThird()
		after(dialTimeout - time.Nanosecond)
		want("before the first has tried for long", 1)
		foundThird()
		if err := <-third; !errors.Is(err, errNotNeeded) {
			t.Errorf("a request that has found a connection: %v", err)
		}
		after(time.Nanosecond)
		want("when the first has tried for long", 2)
		_, failFourth, fourth := start(false)
		foundSecond()
		after(settleTime - time.Nanosecond)
		want("just after the second has its connection", 2)
		after(time.Nanosecond)
		want("when others have had the time to use it", 3)
		_, failLast, _ := start(true)
		defer failLast()
		want("for a request that is sent again", 3)
		failFourth()
		want("when the fourth has failed", 4)
		if err := <-fourth; !errors.Is(err, context.Canceled) {
			t.Errorf("a dial that fails: %v", err)
		}
	})
}
