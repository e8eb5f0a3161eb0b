package question

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/requests"
)

var errRefused = errors.New("connection refused")

// inBubble runs a test with fake time and a question whose pauses are 1, 2, 4 and again 4 s.
func inBubble(t *testing.T, test func(t *testing.T, q *Question[string])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		q := New[string](wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: 4 * time.Second})
		test(t, &q)
	})
}

// dueAfter waits until a question is due, for a minute at most.
func dueAfter(q *Question[string]) time.Duration {
	began := time.Now()
	for !q.IsDue() && time.Since(began) < time.Minute {
		<-time.After(100 * time.Millisecond)
	}
	return time.Since(began)
}

// An answer has the times of its request and its arrival. Another question may adopt it.
func TestAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		if q.Last().IsKnown() || q.IsInFlight() || !q.IsDue() {
			t.Errorf("a new question is %+v", q)
		}
		asked := time.Now()
		ctx := q.Begin(t.Context(), requests.Meta{Urgent: true})
		if !q.IsInFlight() || q.IsDue() || ctx.Err() != nil || !requests.MetaOf(ctx).Urgent {
			t.Errorf("in flight: %+v, urgent: %t", q, requests.MetaOf(ctx).Urgent)
		}
		<-time.After(3 * time.Second)
		got, want := q.Answer("yes"), Answer[string]{Value: "yes", AskedAt: asked, CameAt: asked.Add(3 * time.Second)}
		if got != want || q.Last() != want || !want.IsKnown() || q.Err() != nil || q.IsInFlight() || !q.IsDue() || ctx.Err() == nil {
			t.Errorf("answered: %+v, want %+v", q, want)
		}
		other := New[string](wait.Backoff{Duration: time.Second, Steps: 10})
		other.Begin(t.Context(), requests.Meta{})
		other.Fail(errRefused, 0)
		if other.Adopt(got); other.Last() != want || other.Err() != nil || !other.IsDue() {
			t.Errorf("adopted: %+v, want %+v", other, want)
		}
	})
}

// A try that fails changes neither the last answer nor its times.
func TestFailureKeepsTheAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		q.Begin(t.Context(), requests.Meta{})
		last := q.Answer("no")
		<-time.After(time.Second)
		ctx := q.Begin(t.Context(), requests.Meta{})
		q.Fail(errRefused, 0)
		if q.Last() != last || !errors.Is(q.Err(), errRefused) || q.IsInFlight() || ctx.Err() == nil {
			t.Errorf("failed: %+v", q)
		}
		q.Begin(t.Context(), requests.Meta{})
		if q.Answer("yes"); q.Last().Value != "yes" || q.Err() != nil {
			t.Errorf("answered: %+v", q)
		}
	})
}

// Pauses grow with each failure. What the API server asks for is added, so that those that are refused together don't come back together. An
// answer restarts them, and EndPause ends one that is our own.
func TestPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		fail := func(err error, most, want time.Duration) {
			t.Helper()
			q.Begin(t.Context(), requests.Meta{})
			pause := q.Fail(err, most)
			if due := dueAfter(q); pause != want || due != want {
				t.Errorf("a pause of %s, due after %s, want %s", pause, due, want)
			}
		}
		for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			fail(errRefused, 0, pause)
		}
		fail(errRefused, 3*time.Second, 3*time.Second)
		busy := fmt.Errorf("ask: %w", apierrors.NewTooManyRequests("busy", 20))
		fail(busy, 0, 24*time.Second)
		fail(busy, time.Second, 21*time.Second)
		q.Begin(t.Context(), requests.Meta{})
		q.Answer("yes")
		if !q.IsDue() {
			t.Error("not due after an answer")
		}
		fail(errRefused, 0, time.Second)
		for err, ends := range map[error]bool{errRefused: true, busy: false} {
			q.Begin(t.Context(), requests.Meta{})
			q.Fail(err, 0)
			if q.EndPause(); q.IsDue() != ends {
				t.Errorf("due after EndPause and %v: %t", err, q.IsDue())
			}
			dueAfter(q)
		}
	})
}

// Cancel leaves the try in flight, because its sender still records its end. Without one it does nothing.
func TestCancel(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		q.Cancel()
		ctx := q.Begin(t.Context(), requests.Meta{})
		if q.Cancel(); ctx.Err() == nil || !q.IsInFlight() {
			t.Errorf("cancelled: %+v, %v", q, ctx.Err())
		}
		q.Fail(context.Cause(ctx), 0)
	})
}
