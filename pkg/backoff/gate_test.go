package backoff

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/refvol/refvol/pkg/requests"
)

var (
	errAway  = error(&url.Error{Op: "Post", URL: "https://api", Err: syscall.ECONNREFUSED})
	errBusy  = error(apierrors.NewTooManyRequests("busy", 0))
	errBroke = apierrors.NewInternalError(errors.New("etcd is away"))
	errToken = error(apierrors.NewUnauthorized("no such token"))
	errRight = error(apierrors.NewForbidden(schema.GroupResource{}, "", errors.New("no such right")))
)

// after waits on fake time.
func after(d time.Duration) { <-time.After(d) }

// client sends requests by a gate. mu guards what is below it.
type client struct {
	gate Gate

	mu   sync.Mutex
	err  error
	sent int
}

func (c *client) set(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.sent = err, 0
}

func (c *client) send() error {
	return c.gate.Do(func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sent++
		return c.err
	})
}

// sendFor sends a request every ten milliseconds, and returns how many came through.
func (c *client) sendFor(d time.Duration) int {
	c.set(c.err)
	for end := time.Now().Add(d); time.Now().Before(end); after(10 * time.Millisecond) {
		_ = c.send()
	}
	return c.sent
}

// While the API server is in trouble, requests are few and have its failure. They go on within
// five seconds of its end.
func TestGateInTrouble(t *testing.T) {
	for _, trouble := range []error{errAway, errBusy, errBroke} {
		synctest.Test(t, func(t *testing.T) {
			c := &client{err: trouble}
			if n := c.sendFor(time.Minute); n < 12 || n > 40 {
				t.Errorf("%v: %d requests in a minute, want one every 1.5 to 5 seconds", trouble, n)
			}
			if err := c.send(); !isShared(err, trouble) {
				t.Errorf("got %v, want %v", err, trouble)
			}
			c.set(nil)
			for began := time.Now(); c.send() != nil; after(10 * time.Millisecond) {
				if time.Since(began) > 2*Short {
					t.Fatalf("%v: closed for more than %v", trouble, 2*Short)
				}
			}
			if n := c.sendFor(time.Second); n != 100 {
				t.Errorf("%v: %d of 100 requests came through after the end", trouble, n)
			}
		})
	}
}

// What concerns one credential or object closes the gate to nobody.
func TestGateStaysOpen(t *testing.T) {
	for _, err := range []error{errToken, errRight, context.Canceled, errors.New("undecided")} {
		synctest.Test(t, func(t *testing.T) {
			c := &client{err: err}
			if n := c.sendFor(time.Second); n != 100 {
				t.Errorf("%v: %d of 100 requests came through", err, n)
			}
		})
	}
}

// A gate may be for another failure. Then what else fails opens it.
func TestGateForRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{err: errRight, gate: Gate{Closes: apierrors.IsForbidden}}
		if n := c.sendFor(time.Minute); n < 12 || n > 40 {
			t.Errorf("%d requests in a minute, want one every 1.5 to 5 seconds", n)
		}
		after(2 * Short)
		c.set(errBusy)
		if n := c.sendFor(time.Second); n != 100 {
			t.Errorf("%d of 100 requests came through", n)
		}
	})
}

// A token that is not accepted says nothing of whether the server is well: it ends no pause,
// and keeps no other request from trying.
func TestGateAfterABadToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{err: errBusy}
		_ = c.send()
		c.set(errToken)
		after(2 * Min)
		if err := c.send(); !apierrors.IsUnauthorized(err) {
			t.Fatalf("got %v", err)
		}
		if c.gate.err == nil {
			t.Error("a bad token has opened the gate")
		}
		c.set(nil)
		if err := c.send(); err != nil {
			t.Errorf("the next request may not try: %v", err)
		}
	})
}

// isShared says whether a request that was not sent got the failure of another one.
func isShared(err, failure error) bool {
	return err != nil && err.Error() == requests.Told(failure).Error()
}

// A request without an answer lets another one try after hangTime.
func TestGateWhileARequestHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{err: errAway}
		_ = c.send()
		c.set(nil)
		after(2 * Min)
		ctx, cancel := context.WithCancel(t.Context())
		var hangs sync.WaitGroup
		hangs.Go(func() { _ = c.gate.Do(func() error { <-ctx.Done(); return ctx.Err() }) })
		synctest.Wait()
		if err := c.send(); !isShared(err, errAway) {
			t.Errorf("got %v while another request tries", err)
		}
		after(hangTime)
		if err := c.send(); err != nil {
			t.Errorf("got %v, want that another request may try", err)
		}
		cancel()
		hangs.Wait()
		if err := c.send(); err != nil {
			t.Errorf("the end of the request that hung has closed the gate: %v", err)
		}
	})
}

// Many requests that fail at the same moment are one failure.
func TestGateManyFailuresAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &client{err: errAway}
		var under sync.WaitGroup
		for range 100 {
			under.Go(func() {
				_ = c.gate.Do(func() error { after(time.Second); return errAway })
			})
		}
		under.Wait()
		c.set(nil)
		after(2 * Min)
		if err := c.send(); err != nil {
			t.Errorf("the first pause is longer than %v: %v", 2*Min, err)
		}
	})
}

// A Retry-After is obeyed with jitter, but for no more than a minute.
func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		seconds     int
		least, most time.Duration
	}{
		{0, Min, 2 * Min},
		{10, 10 * time.Second, 15 * time.Second},
		{3600, time.Minute, 90 * time.Second},
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			var d Delay
			pause := d.Next(Short, apierrors.NewTooManyRequests("busy", test.seconds))
			if seen[pause] = true; pause < test.least || pause > test.most {
				t.Errorf("Retry-After %d: a pause of %v, want %v to %v", test.seconds, pause, test.least, test.most)
			}
		}
		if len(seen) < 50 {
			t.Errorf("Retry-After %d: %d different pauses of 100, want jitter", test.seconds, len(seen))
		}
	}
}

// A pause doubles up to the longest one, and each has jitter.
func TestDelay(t *testing.T) {
	var d Delay
	for _, want := range []time.Duration{Min, 2 * Min, 4 * Min, 8 * Min, Short, Short} {
		if got := d.Next(Short, errAway); got < want || got >= 2*want {
			t.Errorf("got a pause of %v, want %v to %v", got, want, 2*want)
		}
	}
}

// A request that goes through two gates says nothing to the outer one unless the inner one has
// let it through.
func TestAGateInAGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outer := &client{gate: Gate{Closes: apierrors.IsTooManyRequests}, err: errBusy}
		inner := &client{err: errBroke}
		_, _ = outer.send(), inner.send()
		if err := inner.send(); !isShared(err, errBroke) || !apierrors.IsInternalError(err) {
			t.Errorf("what was not sent got %v", err)
		}
		after(2 * Min)
		inner.set(errBroke)
		_ = inner.send() // its next pause is longer than the outer one's
		if err := outer.gate.Do(inner.send); !isShared(err, errBroke) || inner.sent != 1 {
			t.Errorf("through both: %v, %d sent", err, inner.sent)
		}
		if outer.gate.err == nil {
			t.Error("the outer gate was opened by a request that was not sent")
		}
	})
}

// TestAGateNamesNobody: who was not sent gets the code and the reason of another's failure, by which it
// still counts as before, and never its text.
func TestAGateNamesNobody(t *testing.T) {
	const name = "payroll-2f9c"
	status := func(code int32, reason metav1.StatusReason) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "corrupt object " + name,
			Details: &metav1.StatusDetails{Name: name, Causes: []metav1.StatusCause{{Message: name}}, RetryAfterSeconds: 7},
		}}
	}
	for want, failure := range map[string]error{
		"503 ServiceUnavailable": status(503, metav1.StatusReasonServiceUnavailable),
		"500 InternalError":      status(500, metav1.StatusReasonInternalError),
		"429 TooManyRequests":    status(429, metav1.StatusReasonTooManyRequests),
		"connection refused":     &url.Error{Op: "Post", URL: "https://api/" + name, Err: syscall.ECONNREFUSED},
		"ask the API server":     &url.Error{Op: "Post", URL: "https://api/", Err: errors.New("malformed HTTP response " + name)},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var gate Gate
				failure = fmt.Errorf("ask about %s: %w", name, failure)
				if err := gate.Do(func() error { return failure }); !errors.Is(err, failure) {
					t.Errorf("its own failure is %v", err)
				}
				err := gate.Do(func() error { t.Error("sent in a pause"); return nil })
				if err == nil || strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want) {
					t.Errorf("another's failure is %v, want %q", err, want)
				}
				if LevelOf(err) != LevelOf(failure) || ConcernsAll(err) != ConcernsAll(failure) || apierrors.ReasonForError(err) != apierrors.ReasonForError(failure) {
					t.Errorf("%v counts otherwise than %v", err, failure)
				}
				got, _ := apierrors.SuggestsClientDelay(err)
				if seconds, _ := apierrors.SuggestsClientDelay(failure); got != seconds {
					t.Errorf("it asks for %d s, want %d", got, seconds)
				}
			})
		})
	}
}
