// Package question has the state of one question to the API server that is asked again and again: the last answer, and when
// the next try may be sent.
//
// It sends nothing, has no lock and no goroutine, and must not know what is asked. Package requests decides about all requests
// at once; this package is about one.
package question

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/requests"
)

// Answer is what the API server said, with the times when that was asked for and when it came, and the number of the try. It is
// one value, so that no time can belong to another answer. The zero Answer is none.
type Answer[A any] struct {
	Value       A
	Asked, Came time.Time
	Try         uint64
}

// IsKnown tells whether there is an answer.
func (a Answer[A]) IsKnown() bool { return !a.Came.IsZero() }

// Question is one question. Use New to make one. The lock of its owner guards it.
type Question[A any] struct {
	// Last is the newest answer. A try that fails changes nothing of it.
	Last Answer[A]
	// Err is why the last try has failed; nil after an answer.
	Err error
	// Urgent says that somebody waits for the answer. An answer ends that.
	Urgent bool

	first, pauses wait.Backoff
	retryAt       time.Time
	tries         uint64
	asked         time.Time
	cancel        context.CancelFunc
}

// New returns a question without an answer. pauses are those after failures; an answer begins them anew.
func New[A any](pauses wait.Backoff) Question[A] {
	return Question[A]{first: pauses, pauses: pauses}
}

// InFlight tells whether a try has begun that has not ended.
func (q *Question[A]) InFlight() bool { return q.cancel != nil }

// IsDue tells whether a try may begin: none is in flight, and the last pause is over.
func (q *Question[A]) IsDue() bool { return q.cancel == nil && !time.Now().Before(q.retryAt) }

// Begin records that a try begins, and returns its context. The caller sends it with what ctx and the question's urgency say,
// and ends it by Answered, Failed or Drop.
func (q *Question[A]) Begin(ctx context.Context) context.Context {
	m := requests.MetaOf(ctx)
	m.Urgent = q.Urgent
	ctx, q.cancel = context.WithCancel(requests.With(ctx, m)) //nolint:gosec // Drop calls it
	q.tries++
	q.asked = time.Now()
	return ctx
}

// Tries returns how many have begun: the number of the last one.
func (q *Question[A]) Tries() uint64 { return q.tries }

// Cancel ends the context of the try in flight, whose end the caller still records.
func (q *Question[A]) Cancel() {
	if q.cancel != nil {
		q.cancel()
	}
}

// Drop ends the try in flight without an outcome.
func (q *Question[A]) Drop() {
	q.Cancel()
	q.cancel = nil
}

// Answered takes in the answer to the try in flight.
func (q *Question[A]) Answered(value A) {
	q.Drop()
	q.Take(Answer[A]{Value: value, Asked: q.asked, Came: time.Now(), Try: q.tries})
}

// Take takes over an answer, and begins the pauses anew.
func (q *Question[A]) Take(a Answer[A]) {
	q.Last, q.Err, q.Urgent, q.pauses, q.retryAt = a, nil, false, q.first, time.Time{}
}

// Failed takes in why the try in flight has failed, and returns how long the next one waits: for the next pause, or as long as
// the API server asks.
func (q *Question[A]) Failed(err error) (pause time.Duration) {
	q.Drop()
	pause = max(q.pauses.Step(), requests.RetryAfter(err))
	q.Err, q.retryAt = err, time.Now().Add(pause)
	return pause
}

// Restart drops the answer, the try in flight and the pause. The numbers of tries go on.
func (q *Question[A]) Restart() {
	q.Drop()
	q.Take(Answer[A]{})
}

// Renew ends the pause: what made the last try fail may be over.
func (q *Question[A]) Renew() { q.retryAt = time.Time{} }
