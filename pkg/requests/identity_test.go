package requests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
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
		expect.Equal(t, fmt.Sprintf("a Retry-After of %d s", seconds), RetryAfter(fmt.Errorf("ask: %w", apierrors.NewTooManyRequests("busy", seconds))), want)
	}
}

// Another credential ends a pause that a missing one caused, at once for a request that waits, and no other pause.
func TestRenewedEndsNoOtherPause(t *testing.T) {
	for code, waits := range map[int]bool{http.StatusServiceUnavailable: true, http.StatusUnauthorized: false} {
		inBubble(t, status(code), func(t *testing.T, a *answers, r *Requests, client http.RoundTripper) {
			_ = get(t.Context(), client, ordinary)
			a.set(status(http.StatusOK))
			began, ended := time.Now(), make(chan error, 1)
			go func() { ended <- get(t.Context(), client, ordinary) }()
			synctest.Wait()
			r.OnNewCredential(ordinary.Account)
			if err := <-ended; err != nil || time.Since(began) > 0 != waits {
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
		first := must.Get(g.enter(t.Context()))(t)
		g.fail(first, &CredentialError{errNoToken})
		g.recordNoResult(g.epoch) // the pause is over
		second := must.Get(g.enter(t.Context()))(t)
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

// TestChangesAreLogged: the log says whose requests wait, and that they go on. It doesn't say so again if they waited in the minute before,
// nor of a request that nobody waits with.
func TestChangesAreLogged(t *testing.T) {
	t.Cleanup(klog.CaptureState().Restore)
	var log bytes.Buffer
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	const wait, goOn = `"Requests to the API server wait" err="the API server answered 401 Unauthorized" for="ns/a"`,
		`"Requests to the API server go on" after="the API server answered 401 Unauthorized" waited=`
	inBubble(t, nil, func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		waitOnce := func(m Meta) {
			for _, code := range []int{http.StatusUnauthorized, http.StatusOK} {
				a.set(status(code))
				_ = get(t.Context(), client, m)
			}
		}
		var began time.Time
		for _, step := range []struct {
			after time.Duration // since the step before began
			meta  Meta
			want  int
		}{
			{0, Meta{Account: account("a"), Alone: true}, 0},
			{0, ordinary, 1},
			{quietTime, ordinary, 0},
			{quietTime + time.Nanosecond, ordinary, 1},
		} {
			<-time.After(time.Until(began.Add(step.after)))
			log.Reset()
			began = time.Now()
			waitOnce(step.meta)
			text := log.String()
			if strings.Count(text, wait) != step.want || strings.Count(text, goOn) != step.want || strings.Count(text, "\n") != 2*step.want {
				t.Errorf("%v after the step before, want each %d times:\n%s", step.after, step.want, text)
			}
		}
	})
}

// other is in the text of each answer. The API server may name the object of another tenant there.
const other = "secrets/of-another-tenant"

func answerOf(code int, reason metav1.StatusReason, details *metav1.StatusDetails) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: other, Details: details,
	}}
}

// TestRedact: authors of pods see what is wrong with an object, and not what an API server that is not well says of others.
func TestRedact(t *testing.T) {
	tooLarge := &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}
	later := &metav1.StatusDetails{Name: other, RetryAfterSeconds: 7, Causes: []metav1.StatusCause{{Message: other, Field: other}}}
	for name, test := range map[string]struct {
		err   error
		shown bool
		want  string // if the text is not shown
	}{
		"forbidden":           {err: answerOf(http.StatusForbidden, metav1.StatusReasonForbidden, nil), shown: true},
		"a version too large": {err: answerOf(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, tooLarge), shown: true},
		"unauthorized":        {err: answerOf(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, nil), want: "the API server answered 401 Unauthorized"},
		"too many requests":   {err: answerOf(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, later), want: "answered 429 TooManyRequests"},
		"an internal error":   {err: answerOf(http.StatusInternalServerError, metav1.StatusReasonInternalError, nil), want: "answered 500 InternalError"},
		"not ready":           {err: answerOf(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, later), want: "answered 503 ServiceUnavailable"},
		"no connection":       {err: &url.Error{Op: "Get", URL: other, Err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}, want: "connection refused"},
		"an end":              {err: &url.Error{Op: "Get", URL: other, Err: io.EOF}, want: "EOF"},
		"another answer":      {err: &url.Error{Op: "Get", URL: other, Err: errors.New("malformed HTTP status " + other)}, want: "no readable answer"},
		"no token":            {err: &url.Error{Op: "Get", URL: other, Err: &CredentialError{errors.New("no token")}}, want: "no token"},
	} {
		got := Redact(test.err)
		if test.shown != errors.Is(got, test.err) || !test.shown && strings.Contains(got.Error(), other) {
			t.Errorf("%s: got %v, want the error itself: %t", name, got, test.shown)
		}
		if test.shown {
			continue
		}
		expect.Has(t, name, got.Error(), test.want)
		if RetryAfter(got) != RetryAfter(test.err) {
			t.Errorf("%s: Retry-After %s became %s", name, RetryAfter(test.err), RetryAfter(got))
		}
	}
}

// TestIdentitiesAreNamed: the log says whose requests wait.
func TestIdentitiesAreNamed(t *testing.T) {
	for want, who := range map[string]identity{
		"the node":                 {node: true},
		"the plugin's own account": {},
		"shop/web":                 {account: volume.ServiceAccount{Namespace: "shop", Name: "web"}},
	} {
		expect.Equal(t, fmt.Sprintf("%+v", who), who.String(), want)
	}
}

// TestDocumentedPauses: docs/reliability.md has the right pauses.
func TestDocumentedPauses(t *testing.T) {
	want := fmt.Sprintf("up to %v s apart while it can't be reached, up to %v s after a 401 or 503", maxWayPause.Seconds(), maxPause.Seconds())
	limit := fmt.Sprintf("`Retry-After`, up to %v s", maxRetryAfter.Seconds())
	doclines.Says(t, "../../docs/reliability.md", want, limit)
}
