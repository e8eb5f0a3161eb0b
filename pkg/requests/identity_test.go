package requests

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/refvol/refvol/pkg/volume"
)

// The plugin's own requests and those that impersonate the node are of two users for the API server: a 429 to one holds up
// nothing of the other.
func TestAnIdentityIsWhatTheServerSees(t *testing.T) {
	inBubble(t, busy(http.StatusTooManyRequests, "30"), func(t *testing.T, a *answers, r *Requests, own http.RoundTripper) {
		node := r.Wrap(a, false)
		_ = get(t.Context(), own, Meta{})
		a.set(status(http.StatusOK))
		began := time.Now()
		if err := get(t.Context(), node, Meta{Urgent: true}); err != nil || time.Since(began) > 0 {
			t.Errorf("a read as the node took %s: %v", time.Since(began), err)
		}
		if _, err := r.Err(volume.ServiceAccount{}); err != nil {
			t.Errorf("reads as the node are said to wait: %v", err)
		}
		if err := get(t.Context(), own, Meta{}); err != nil || time.Since(began) < 30*time.Second {
			t.Errorf("an event took %s: %v", time.Since(began), err)
		}
	})
}

// Another credential ends a pause for want of one, and not what the server has asked for.
func TestRenewedEndsNoRetryAfter(t *testing.T) {
	for code, wants := range map[int]time.Duration{http.StatusTooManyRequests: 30 * time.Second, http.StatusUnauthorized: 0} {
		inBubble(t, busy(code, "30"), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
			_ = get(t.Context(), client, ordinary)
			a.set(status(http.StatusOK))
			began := time.Now()
			r.Renewed(ordinary.Account)
			if err := get(t.Context(), client, ordinary); err != nil || time.Since(began) < wants || wants == 0 && time.Since(began) > 0 {
				t.Errorf("after %d it took %s: %v", code, time.Since(began), err)
			}
		})
	}
}

// A stream that is reset says nothing of the way to the API server: its connection works.
func TestAResetStreamStopsNobody(t *testing.T) {
	reset := func(*http.Request) (int, string, error) {
		return 0, "", http2.StreamError{StreamID: 1, Code: http2.ErrCodeInternal}
	}
	inBubble(t, reset, func(t *testing.T, _ *answers, r *Requests, client http.RoundTripper) {
		if err := get(t.Context(), client, ordinary); err == nil {
			t.Error("no error")
		}
		if _, err := r.Err(account("b")); err != nil {
			t.Errorf("requests of other accounts wait: %v", err)
		}
	})
}

// A client whose API server can't be reached keeps another client from none of its connections.
func TestADialOfOneClientHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gone := r.Wrap(neverConnects{}, true)
		go func() { _ = get(ctx, gone, ordinary) }()
		synctest.Wait()
		a := &answers{answer: status(http.StatusOK)}
		began := time.Now()
		if err := get(ctx, r.Wrap(a, true), urgent); err != nil || time.Since(began) > 0 {
			t.Errorf("it took %s: %v", time.Since(began), err)
		}
	})
}

// neverConnects is a base transport that looks for a connection until its request ends.
type neverConnects struct{}

func (neverConnects) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A gate that fails and is renewed at once is either open, or has a probe: no order of the two closes it for ever.
func TestAGateThatIsRenewedOpens(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for range 2000 {
		g := &gate{name: "test", max: firstPause}
		first, err := g.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first.fail(&CredentialError{errNoToken}, 0)
		<-time.After(0)
		g.admit(g.closed, 1)
		second, err := g.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(func() { second.fail(&CredentialError{errNoToken}, 0) })
		both.Go(g.renew)
		both.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		last, err := g.enter(ctx)
		cancel()
		if err != nil {
			t.Fatalf("it is closed for ever: %v", err)
		}
		last.succeed()
	}
}

var errNoToken = errors.New("no token")
