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

// An answer has the times of its request and its arrival, and the number of its try.
func TestAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		if q.Last.IsKnown() || q.IsInFlight() || !q.IsDue() || q.Tries() != 0 {
			t.Errorf("a new question is %+v", q)
		}
		q.Urgent = true
		asked := time.Now()
		ctx := q.Begin(t.Context())
		if !q.IsInFlight() || q.IsDue() || ctx.Err() != nil || !requests.MetaOf(ctx).Urgent {
			t.Errorf("in flight: %+v, urgent: %t", q, requests.MetaOf(ctx).Urgent)
		}
		<-time.After(3 * time.Second)
		q.RecordAnswer("yes")
		want := Answer[string]{Value: "yes", AskedAt: asked, CameAt: asked.Add(3 * time.Second), Try: 1}
		if q.Last != want || !q.Last.IsKnown() || q.Err != nil || q.Urgent || q.IsInFlight() || !q.IsDue() || ctx.Err() == nil {
			t.Errorf("answered: %+v, want %+v", q, want)
		}
		if requests.MetaOf(q.Begin(t.Context())).Urgent {
			t.Error("the next try is urgent too")
		}
		q.Drop()
	})
}

// A try that fails or is dropped changes neither the last answer nor its times.
func TestFailureKeepsTheAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		q.Begin(t.Context())
		q.RecordAnswer("no")
		last := q.Last
		<-time.After(time.Second)
		q.Urgent = true
		q.Begin(t.Context())
		q.RecordFailure(errRefused)
		if q.Last != last || !errors.Is(q.Err, errRefused) || !q.Urgent || q.Tries() != 2 || q.IsInFlight() {
			t.Errorf("failed: %+v", q)
		}
		q.Begin(t.Context())
		q.Drop()
		if q.Last != last || q.IsInFlight() || q.Tries() != 3 {
			t.Errorf("dropped: %+v", q)
		}
		q.Begin(t.Context())
		q.RecordAnswer("yes")
		if q.Last.Value != "yes" || q.Last.Try != 4 || q.Err != nil || q.Urgent {
			t.Errorf("answered: %+v", q)
		}
	})
}

// Pauses grow with each failure. An answer restarts them, and EndPause ends one.
func TestPauses(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		fail := func(err error, want time.Duration) {
			t.Helper()
			q.Begin(t.Context())
			pause := q.RecordFailure(err)
			if due := dueAfter(q); pause != want || due != want {
				t.Errorf("a pause of %s, due after %s, want %s", pause, due, want)
			}
		}
		for _, pause := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			fail(errRefused, pause)
		}
		busy := fmt.Errorf("ask: %w", apierrors.NewTooManyRequests("busy", 20))
		fail(busy, 20*time.Second)
		q.Begin(t.Context())
		q.RecordAnswer("yes")
		if !q.IsDue() {
			t.Error("not due after an answer")
		}
		fail(errRefused, time.Second)
		q.Begin(t.Context())
		q.RecordFailure(errRefused)
		if q.EndPause(); !q.IsDue() {
			t.Error("not due after EndPause")
		}
	})
}

// Cancel leaves the try in flight, because its sender still records its end. Without one it does nothing.
func TestCancel(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		q.Cancel()
		ctx := q.Begin(t.Context())
		if q.Cancel(); ctx.Err() == nil || !q.IsInFlight() {
			t.Errorf("cancelled: %+v, %v", q, ctx.Err())
		}
		q.RecordFailure(context.Cause(ctx))
	})
}

// Restart forgets all but the number of tries: an answer of a try before it can be told from later ones.
func TestRestart(t *testing.T) {
	inBubble(t, func(t *testing.T, q *Question[string]) {
		q.Begin(t.Context())
		q.RecordAnswer("yes")
		q.Begin(t.Context())
		q.RecordFailure(errRefused)
		ctx := q.Begin(t.Context())
		q.Restart()
		if q.Last.IsKnown() || q.Err != nil || q.IsInFlight() || !q.IsDue() || ctx.Err() == nil || q.Tries() != 3 {
			t.Errorf("restarted: %+v", q)
		}
		q.Begin(t.Context())
		if pause := q.RecordFailure(errRefused); pause != time.Second {
			t.Errorf("the first pause after it is %s", pause)
		}
	})
}
