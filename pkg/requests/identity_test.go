package requests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/volume"
)

// The API server sees the plugin's own requests and those that impersonate the node as two users. An answer to one does not delay the
// other.
func TestAnIdentityIsWhatTheServerSees(t *testing.T) {
	inBubble(t, status(http.StatusUnauthorized), func(t *testing.T, a *answers, r *Requests, own http.RoundTripper) {
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
		if err := get(t.Context(), own, Meta{}); err != nil || time.Since(began) < firstPause/2 {
			t.Errorf("an event took %s: %v", time.Since(began), err)
		}
	})
}

// The sender of a request with a 429 learns how long to wait.
func TestRetryAfter(t *testing.T) {
	for seconds, want := range map[int]time.Duration{0: 0, 30: 30 * time.Second, 3600: maxRetryAfter} {
		if got := RetryAfter(fmt.Errorf("ask: %w", apierrors.NewTooManyRequests("busy", seconds))); got != want {
			t.Errorf("a Retry-After of %d s: %s", seconds, got)
		}
	}
}

// Another credential ends a pause that a missing one caused, and no other pause.
func TestRenewedEndsNoOtherPause(t *testing.T) {
	for code, waits := range map[int]bool{http.StatusServiceUnavailable: true, http.StatusUnauthorized: false} {
		inBubble(t, status(code), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
			_ = get(t.Context(), client, ordinary)
			a.set(status(http.StatusOK))
			began := time.Now()
			r.OnNewCredential(ordinary.Account)
			if err := get(t.Context(), client, ordinary); err != nil || time.Since(began) > 0 != waits {
				t.Errorf("after %d it took %s: %v", code, time.Since(began), err)
			}
		})
	}
}

// A client whose API server is unreachable does not keep another client from opening connections.
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

// A gate that fails and is renewed at the same time is either open or lets a request probe. No order of the two closes it forever.
func TestAGateThatIsRenewedOpens(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for range 500 {
		g := &gate{name: "test"}
		first, err := g.enter(t.Context())
		must(t, err)
		g.fail(first, &CredentialError{errNoToken})
		g.recordNoResult(g.epoch) // the pause is over
		second, err := g.enter(t.Context())
		must(t, err)
		var both sync.WaitGroup
		both.Go(func() { g.fail(second, &CredentialError{errNoToken}) })
		both.Go(g.renew)
		both.Wait()
		g.recordNoResult(g.epoch)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		last, err := g.enter(ctx)
		cancel()
		if err != nil {
			t.Fatalf("it is closed for ever: %v", err)
		}
		g.succeed(last)
	}
}

var errNoToken = errors.New("no token")
