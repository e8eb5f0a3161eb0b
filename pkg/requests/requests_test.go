package requests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// after lets fake time pass, and everything that happens in it.
func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// answers is a base transport without a network. It gives each request a connection at once. mu guards the fields below it.
type answers struct {
	mu     sync.Mutex
	sent   int
	answer answer
}

// answer returns the code of an answer, and its Retry-After or "".
type answer func(*http.Request) (code int, retryAfter string, err error)

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.mu.Lock()
	a.sent++
	answer := a.answer
	a.mu.Unlock()
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
	code, after, err := answer(r)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if after != "" {
		header.Set("Retry-After", after)
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Header: header, Body: io.NopCloser(strings.NewReader("secret"))}, nil
}

func (a *answers) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

func (a *answers) set(answer answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.sent = answer, 0
}

func silent(r *http.Request) (int, string, error) {
	<-r.Context().Done()
	return 0, "", r.Context().Err()
}

func status(code int) answer { return busy(code, "") }

func busy(code int, retryAfter string) answer {
	return func(*http.Request) (int, string, error) { return code, retryAfter, nil }
}

// slowly gives an answer after half the time of a slot.
func slowly(give answer) answer {
	return func(r *http.Request) (int, string, error) {
		<-time.After(slotTimeout / 2)
		return give(r)
	}
}

func away(*http.Request) (int, string, error) { return 0, "", errors.New("connection refused") }

func account(name string) volume.ServiceAccount {
	return volume.ServiceAccount{Namespace: "ns", Name: name}
}

// get sends a request for an account of that name, and discards the answer.
func get(ctx context.Context, t http.RoundTripper, m Meta) error {
	r, err := http.NewRequestWithContext(With(ctx, m), http.MethodGet, "http://api/"+m.Account.Name, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// inBubble runs a test with fake time and a client that sends through answers.
func inBubble(t *testing.T, answer answer, test func(t *testing.T, a *answers, r *Requests, client http.RoundTripper)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, r := &answers{answer: answer}, New()
		test(t, a, r, r.Wrap(a, true))
	})
}

var ordinary, urgent = Meta{Account: account("a")}, Meta{Account: account("a"), Urgent: true}

// Few requests are in flight, and some more urgent ones. A request without an answer soon loses its slot.
func TestSlots(t *testing.T) {
	inBubble(t, silent, func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
		ctx, cancel := context.WithCancel(t.Context())
		for range 100 {
			go func() { _ = get(ctx, client, ordinary) }()
		}
		synctest.Wait()
		expect.Equal(t, "requests under way", a.count(), ordinarySlots)
		for range 10 {
			go func() { _ = get(ctx, client, urgent) }()
		}
		synctest.Wait()
		expect.Equal(t, "requests under way, urgent ones with them", a.count(), ordinarySlots+urgentSlots)
		after(slotTimeout)
		expect.Equal(t, "requests after silent ones lost their slots", a.count(), 2*(ordinarySlots+urgentSlots))
		cancel()
		synctest.Wait()
		s := r.State()
		expect.Equal(t, "requests that are left, and free slots", fmt.Sprint(s.UnderWay+s.Waiting, r.slots.free), fmt.Sprint(0, ordinarySlots+urgentSlots))
		if _, err := r.Err(account("a")); err != nil {
			t.Errorf("cancelled requests have others wait: %v", err)
		}
	})
}

// While the API server is away few requests are sent. Soon after it is back, all are sent.
func TestOutage(t *testing.T) {
	inBubble(t, away, func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { _ = get(t.Context(), client, ordinary) })
		}
		after(time.Minute)
		expect.Between(t, "requests in a minute", a.count(), 0, 40)
		since, err := r.Err(account("a"))
		if err == nil || time.Since(since) != time.Minute || strings.Contains(err.Error(), "refused") {
			t.Errorf("requests wait for %v: %v", time.Since(since), err)
		}
		if s := r.State(); s.Waiting < 900 || s.Closed[Unreachable] != 1 {
			t.Errorf("the state is %+v", s)
		}
		a.set(status(http.StatusOK))
		began := time.Now()
		all.Wait()
		expect.Between(t, "the time until all have their answers", time.Since(began), 0, maxWayPause)
		must.Get(r.Err(account("a")))(t)
	})
}

type silentKey struct{}

// silently gives no answer to requests whose context says so.
func silently(give answer) answer {
	return func(r *http.Request) (int, string, error) {
		if r.Context().Value(silentKey{}) != nil {
			return silent(r)
		}
		return give(r)
	}
}

// When a pause ends, one of all the requests that wait is sent. If it is cancelled, the next one is sent at once.
func TestOneProbes(t *testing.T) {
	inBubble(t, away, func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		_ = get(t.Context(), client, ordinary)
		a.set(silently(status(http.StatusOK)))
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			go func() { _ = get(context.WithValue(ctx, silentKey{}, true), client, ordinary) }()
		}
		after(firstPause)
		expect.Equal(t, "requests when the pause ended", a.count(), 1)
		ended := make(chan time.Time, 1)
		go func() {
			_ = get(t.Context(), client, ordinary)
			ended <- time.Now()
		}()
		after(time.Millisecond)
		cancelled := time.Now()
		cancel()
		expect.Equal(t, "the time that the next one waits", (<-ended).Sub(cancelled), 0)
	})
}

// The request that probes may get no answer. It does not delay the others for long.
func TestSilentProbes(t *testing.T) {
	inBubble(t, away, func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		_ = get(t.Context(), client, ordinary)
		a.set(silently(status(http.StatusOK)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 200 {
			go func() { _ = get(context.WithValue(ctx, silentKey{}, true), client, ordinary) }()
		}
		synctest.Wait()
		began := time.Now()
		must.Do(t, get(ctx, client, ordinary))
		expect.Between(t, "the time until the request that gets an answer was sent", time.Since(began), 0, 20*time.Second)
	})
}

// An answer about an account makes the requests of that account wait, and no others.
func TestAnAccountWaits(t *testing.T) {
	for _, test := range []struct {
		name        string
		answer      answer
		least, most time.Duration
		reason      func(error) bool
	}{
		{"401", status(http.StatusUnauthorized), firstPause / 2, firstPause, apierrors.IsUnauthorized},
		{"away", away, firstPause / 2, firstPause, func(err error) bool { return reasonOf(err) == Unreachable }},
		{"429", busy(http.StatusTooManyRequests, "40"), 0, 0, nil},
		{"503", status(http.StatusServiceUnavailable), firstPause / 2, firstPause, apierrors.IsServiceUnavailable},
		{"no credential", func(*http.Request) (int, string, error) { return 0, "", &CredentialError{errors.New("no token")} }, firstPause / 2, firstPause, func(err error) bool { return errors.As(err, new(*CredentialError)) }},
		{"500", status(http.StatusInternalServerError), 0, 0, nil},
		{"504", status(http.StatusGatewayTimeout), 0, 0, nil},
		{"403", status(http.StatusForbidden), 0, 0, nil},
		{"a stream that is reset", func(*http.Request) (int, string, error) {
			return 0, "", http2.StreamError{StreamID: 1, Code: http2.ErrCodeInternal}
		}, 0, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, test.answer, func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
				_ = get(t.Context(), client, ordinary)
				_, err := r.Err(account("a"))
				if (err != nil) != (test.most > 0) || err != nil && (!test.reason(err) || strings.Contains(err.Error(), "secret")) {
					t.Errorf("requests wait for %v", err)
				}
				a.set(status(http.StatusOK))
				began := time.Now()
				for _, other := range []Meta{{Account: account("b")}, {}, {Account: account("a"), Alone: true}} {
					if err := get(t.Context(), client, other); err != nil || time.Since(began) > 0 {
						t.Errorf("a request of %v waited for %v: %v", other, time.Since(began), err)
					}
				}
				must.Do(t, get(t.Context(), client, ordinary))
				expect.Between(t, "the time that it waited", time.Since(began), test.least, test.most)
			})
		})
	}
}

// The pauses grow while the failure lasts, up to half a minute, and start again after a success.
func TestPausesGrow(t *testing.T) {
	inBubble(t, status(http.StatusUnauthorized), func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
			_ = get(t.Context(), client, ordinary)
		}
		expect.Between(t, "requests in ten minutes", a.count(), 20, 60)
		a.set(status(http.StatusOK))
		_ = get(t.Context(), client, ordinary)
		a.set(status(http.StatusUnauthorized))
		_ = get(t.Context(), client, ordinary)
		began := time.Now()
		_ = get(t.Context(), client, ordinary)
		expect.Between(t, "the first pause", time.Since(began), 0, firstPause)
	})
}

// Two requests of an account are under way when its credential is replaced. The refusal of the first one has all wait, also if another account
// has come meanwhile. That of the second one says nothing about the new credential. So does the first refusal, if it comes after the new one.
func TestRenewedBetweenTwoRefusals(t *testing.T) {
	inBubble(t, slowly(status(http.StatusUnauthorized)), func(t *testing.T, _ *answers, r *Requests, client http.RoundTripper) {
		send := func(names ...string) {
			for _, name := range names {
				go func() { _ = get(t.Context(), client, Meta{Account: account(name)}) }()
			}
			after(slotTimeout / 4)
		}
		wantWaits := func(name string, want bool) {
			t.Helper()
			if _, err := r.Err(account(name)); (err != nil) != want {
				t.Errorf("requests of %s wait for %v, want that they wait: %t", name, err, want)
			}
		}
		send("a")
		send("a", "b", "c")
		wantWaits("a", true)
		wantWaits("b", false)
		r.OnNewCredential(account("a"))
		r.OnNewCredential(account("c"))
		after(slotTimeout / 4)
		wantWaits("a", false)
		wantWaits("b", true)
		wantWaits("c", false)
	})
}

// A request that waits for a slot while its account's requests begin to wait, waits with them.
func TestAGateThatClosesWhileARequestWaitsForItsSlot(t *testing.T) {
	inBubble(t, silently(slowly(status(http.StatusUnauthorized))), func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range ordinarySlots - 1 {
			go func() { _ = get(context.WithValue(ctx, silentKey{}, true), client, Meta{Account: account("b")}) }()
		}
		go func() { _ = get(ctx, client, ordinary) }()
		synctest.Wait()
		ended := make(chan time.Time, 1)
		go func() {
			_ = get(ctx, client, ordinary)
			ended <- time.Now()
		}()
		after(slotTimeout / 2)
		closedAt := time.Now()
		a.set(status(http.StatusOK))
		expect.Between(t, "the time that it waited", (<-ended).Sub(closedAt), firstPause/2, firstPause)
	})
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A waiting request gives up when its context ends. Its body is closed, as a transport must.
func TestWaitsEnd(t *testing.T) {
	inBubble(t, away, func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		_ = get(t.Context(), client, ordinary)
		a.set(away)
		ctx, cancel := context.WithTimeout(With(t.Context(), ordinary), firstPause/4)
		defer cancel()
		body := &closing{Reader: strings.NewReader("{}")}
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodPost, "http://api/", body))(t)
		resp, err := client.RoundTrip(r)
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, context.DeadlineExceeded) || !body.closed || a.count() > 0 {
			t.Errorf("%v after %d requests, closed: %t", err, a.count(), body.closed)
		}
	})
}

// A refusal of the plugin's own account is signalled, and no other answer.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		code int
		meta Meta
		own  bool
		want int
	}{
		"its own":      {http.StatusForbidden, Meta{}, true, 1},
		"a pod's":      {http.StatusForbidden, ordinary, true, 0},
		"the node's":   {http.StatusForbidden, Meta{}, false, 0},
		"not found":    {http.StatusNotFound, Meta{}, true, 0},
		"unauthorized": {http.StatusUnauthorized, Meta{}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, status(test.code), func(t *testing.T, a *answers, r *Requests, _ http.RoundTripper) {
				for range 2 {
					_ = get(t.Context(), r.Wrap(a, test.own), test.meta)
				}
				expect.Equal(t, "signals", len(r.Refused()), test.want)
			})
		})
	}
}

// TestGatesOfAccountsThatAreGone: accounts come and go. A gate is remembered while requests use it, and for a while after that.
func TestGatesOfAccountsThatAreGone(t *testing.T) {
	inBubble(t, status(http.StatusUnauthorized), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
		_ = get(t.Context(), client, ordinary)
		after(unusedTime - time.Nanosecond)
		if _, err := r.Err(ordinary.Account); err == nil || r.State().Closed[Unauthorized] != 1 {
			t.Errorf("the closed gate is forgotten: %v, %+v", err, r.State())
		}
		after(time.Nanosecond)
		expect.Equal(t, "closed gates when nobody waits any more", r.State().Closed[Unauthorized], 0)
		ctx, cancel := context.WithCancel(t.Context())
		var waits sync.WaitGroup
		for range 2 {
			waits.Go(func() {
				for ctx.Err() == nil {
					_ = get(ctx, client, ordinary) // a watch that is never allowed
				}
			})
		}
		a.set(status(http.StatusUnauthorized))
		after(10 * unusedTime)
		expect.Equal(t, "closed gates while requests wait", r.State().Closed[Unauthorized], 1)
		cancel()
		waits.Wait()
		a.set(status(http.StatusOK))
		for i := range 100 {
			_ = get(t.Context(), client, Meta{Account: account(fmt.Sprint("b", i))})
			after(unusedTime / 10)
		}
		expect.Between(t, "accounts that are remembered", len(r.identities), 0, 11)
	})
}
