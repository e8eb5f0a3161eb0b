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

// Answer is an answer of the API server, with the times when it was requested and when it came. It is one value, so that the times always
// belong to the same answer. The zero Answer is no answer.
type Answer[A any] struct {
	Value           A
	AskedAt, CameAt time.Time
}

// IsKnown reports whether there is an answer.
func (a Answer[A]) IsKnown() bool { return !a.CameAt.IsZero() }

// Question is one question. New returns one. It is not safe for concurrent use: the owner's lock guards it.
type Question[A any] struct {
	last                Answer[A]
	err                 error
	firstPauses, pauses wait.Backoff
	retryAt, askedAt    time.Time
	cancel              context.CancelFunc
}

// New returns a question without an answer. pauses are the pauses after failures. An answer restarts them.
func New[A any](pauses wait.Backoff) Question[A] {
	return Question[A]{firstPauses: pauses, pauses: pauses}
}

// Last returns the newest answer. A try that fails does not change it.
func (q *Question[A]) Last() Answer[A] { return q.last }

// Err returns why the last try failed, or nil after an answer.
func (q *Question[A]) Err() error { return q.err }

// IsInFlight reports whether a try has begun and not ended.
func (q *Question[A]) IsInFlight() bool { return q.cancel != nil }

// IsDue reports whether a try may begin: none is in flight, and the last pause is over.
func (q *Question[A]) IsDue() bool { return q.cancel == nil && !time.Now().Before(q.retryAt) }

// Begin records the start of a try and returns its context, which has m. The caller sends the request with that context, and then calls
// Answer or Fail.
func (q *Question[A]) Begin(ctx context.Context, m requests.Meta) context.Context {
	ctx, q.cancel = context.WithCancel(requests.With(ctx, m)) //nolint:gosec // Cancel and the end of the try call it
	q.askedAt = time.Now()
	return ctx
}

// Cancel cancels the context of the try in flight. The caller still records its end.
func (q *Question[A]) Cancel() {
	if q.cancel != nil {
		q.cancel()
	}
}

func (q *Question[A]) end() {
	q.Cancel()
	q.cancel = nil
}

// Answer records the answer to the try in flight, and returns it.
func (q *Question[A]) Answer(value A) Answer[A] {
	q.end()
	q.Adopt(Answer[A]{Value: value, AskedAt: q.askedAt, CameAt: time.Now()})
	return q.last
}

// Adopt stores the answer to another question that is also one to this question.
func (q *Question[A]) Adopt(a Answer[A]) {
	q.last, q.err, q.pauses, q.retryAt = a, nil, q.firstPauses, time.Time{}
}

// Fail records why the try in flight failed. It returns how long to wait before the next one: the next pause, which is at most as long as
// most unless that is 0, and the time that the API server asks for.
func (q *Question[A]) Fail(err error, most time.Duration) (pause time.Duration) {
	q.end()
	pause = q.pauses.Step()
	if most > 0 {
		pause = min(pause, most)
	}
	pause += requests.RetryAfter(err)
	q.err, q.retryAt = err, time.Now().Add(pause)
	return pause
}

// EndPause ends the pause, so that the next try is due, unless the API server asked for the pause. The owner knows that the cause of the
// last failure may be over, or cannot wait.
func (q *Question[A]) EndPause() {
	if requests.RetryAfter(q.err) == 0 {
		q.retryAt = time.Time{}
	}
}
