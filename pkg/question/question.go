// Package question holds the state of one question that is sent to the API server again and again: the last answer, and when the next try
// may be sent.
//
// It sends nothing, and it has no lock and no goroutine. It must not know what is asked. Package requests decides about all requests
// together; this package is about a single one.
package question

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/requests"
)

// Answer is an answer of the API server, with the times when it was requested and when it came, and the number of the try. It is one value,
// so that the times always belong to the same answer. The zero Answer is no answer.
type Answer[A any] struct {
	Value           A
	AskedAt, CameAt time.Time
	Try             uint64
}

// IsKnown reports whether there is an answer.
func (a Answer[A]) IsKnown() bool { return !a.CameAt.IsZero() }

// Question is one question. New returns one. It is not safe for concurrent use: the owner's lock guards it.
type Question[A any] struct {
	// Last is the newest answer. A try that fails does not change it.
	Last Answer[A]
	// Err says why the last try failed; nil after an answer.
	Err error
	// Urgent means that a publish waits for the answer. An answer resets it.
	Urgent bool

	firstPauses, pauses wait.Backoff
	retryAt             time.Time
	tries               uint64
	askedAt             time.Time
	cancel              context.CancelFunc
}

// New returns a question without an answer. pauses are the pauses after failures. An answer restarts them.
func New[A any](pauses wait.Backoff) Question[A] {
	return Question[A]{firstPauses: pauses, pauses: pauses}
}

// IsInFlight reports whether a try has begun and not ended.
func (q *Question[A]) IsInFlight() bool { return q.cancel != nil }

// IsDue reports whether a try may begin: none is in flight, and the last pause is over.
func (q *Question[A]) IsDue() bool { return q.cancel == nil && !time.Now().Before(q.retryAt) }

// Begin records the start of a try and returns its context. The caller sends the request with that context, and ends the try by
// RecordAnswer, RecordFailure or Drop.
func (q *Question[A]) Begin(ctx context.Context) context.Context {
	m := requests.MetaOf(ctx)
	m.Urgent = q.Urgent
	ctx, q.cancel = context.WithCancel(requests.With(ctx, m)) //nolint:gosec // Drop calls it
	q.tries++
	q.askedAt = time.Now()
	return ctx
}

// Tries returns how many tries have begun. That is also the number of the last one.
func (q *Question[A]) Tries() uint64 { return q.tries }

// Cancel cancels the context of the try in flight. The caller still records its end.
func (q *Question[A]) Cancel() {
	if q.cancel != nil {
		q.cancel()
	}
}

// Drop ends the try in flight without a result.
func (q *Question[A]) Drop() {
	q.Cancel()
	q.cancel = nil
}

// RecordAnswer records the answer to the try in flight.
func (q *Question[A]) RecordAnswer(value A) {
	q.Drop()
	q.SetLast(Answer[A]{Value: value, AskedAt: q.askedAt, CameAt: time.Now(), Try: q.tries})
}

// SetLast stores an answer, and restarts the pauses.
func (q *Question[A]) SetLast(a Answer[A]) {
	q.Last, q.Err, q.Urgent, q.pauses, q.retryAt = a, nil, false, q.firstPauses, time.Time{}
}

// RecordFailure records why the try in flight failed. It returns how long to wait before the next one: the next pause, or longer if the API
// server asks for that.
func (q *Question[A]) RecordFailure(err error) (pause time.Duration) {
	q.Drop()
	pause = max(q.pauses.Step(), requests.RetryAfter(err))
	q.Err, q.retryAt = err, time.Now().Add(pause)
	return pause
}

// Restart drops the answer, the try in flight and the pause. The numbers of tries continue.
func (q *Question[A]) Restart() {
	q.Drop()
	q.SetLast(Answer[A]{})
}

// EndPause ends the pause, so that the next try is due. The owner knows that the cause of the last failure may be over, or cannot wait.
func (q *Question[A]) EndPause() { q.retryAt = time.Time{} }
