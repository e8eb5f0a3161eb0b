package requests

import (
	"context"
	"crypto/tls"
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

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
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
			expect.Between(t, "the number of the last request of "+name, o.last(name), 1, most)
		}
	})
}

// TestPods: each pod that waits is in it once, until it is removed or there is an answer.
func TestPods(t *testing.T) {
	var p Pods
	holds := func(step string, want ...types.UID) {
		t.Helper()
		var got []types.UID
		p.join(func(uid types.UID) { got = append(got, uid) })()
		expect.Equal(t, step, got, want)
		expect.Equal(t, step+": whether it is empty", p.IsEmpty(), want[0] == "")
	}
	holds("at first", "")
	p.Add("a")
	p.Add("b")
	p.Add("a")
	holds("added", "a", "b")
	p.Remove("a")
	holds("removed", "b")
	p.Clear()
	holds("cleared", "")
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
		expect.Between(t, "its number", o.last("object-499"), 1, 2*(ordinarySlots+urgentSlots))
		r.slots.mu.Lock()
		defer r.slots.mu.Unlock()
		expect.Equal(t, "free slots, and those for ordinary requests", fmt.Sprint(r.slots.free, r.slots.ordinary), fmt.Sprint(ordinarySlots+urgentSlots, ordinarySlots))
		for _, l := range r.slots.lines {
			expect.Between(t, "requests that are left in a line", len(l.waiting), 0, 1)
		}
	})
}

// An answer that is read as a whole keeps its slot until it is closed, or for a second.
func TestWholeAnswers(t *testing.T) {
	inBubble(t, status(http.StatusOK), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
		send := func(m Meta) *http.Response {
			req := must.Get(http.NewRequestWithContext(With(t.Context(), m), http.MethodGet, "http://api/", http.NoBody))(t)
			return must.Get(client.RoundTrip(req))(t)
		}
		under := func(want int64) {
			t.Helper()
			expect.Equal(t, "requests with slots", r.State().UnderWay, want)
		}
		first, second, watch := send(Meta{Whole: true}), send(Meta{Whole: true}), send(Meta{})
		under(2)
		for range 2 {
			must.Do(t, first.Body.Close())
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
		first := must.Get(s.take(t.Context(), true, For("a")))(t)
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
		expect.Equal(t, "free slots, those for ordinary requests, and lines", fmt.Sprint(s.free, s.ordinary, len(s.lines)), "1 1 0")
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
		req := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody))(t)
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
			expect.Equal(t, "dials "+when, dials.Load(), n)
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
		expect.Is(t, "a request that has found a connection", <-third, errNotNeeded)
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
		expect.Is(t, "a dial that fails", <-fourth, context.Canceled)
	})
}
