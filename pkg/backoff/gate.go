package backoff

import (
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/requests"
)

// hangTime is how long a request that tries has no answer before another one may try.
const hangTime = 2 * time.Second

// Gate gives all requests of one kind one pause. After a failure that concerns them all, none
// is sent until the pause is over. Then one request tries, until one has succeeded. The zero
// Gate is open. It is safe for concurrent use and has no goroutine.
type Gate struct {
	// Closes tells which failures concern all requests; nil is ConcernsAll. It is set before the
	// first request.
	Closes func(error) bool

	mu    sync.Mutex
	delay Delay
	// err is the failure for which the gate is closed; nil while it is open.
	err error
	// since is when the present pause began, and until is when it ends.
	since, until time.Time
	// tries is when the request was sent that tries; zero for none.
	tries time.Time
}

// notSentError is the failure that has closed a gate, as what a request gets that was not sent. To
// another gate, through which the request went as well, it says nothing new.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

// Do calls request and returns its error. While the gate is closed it doesn't call request and
// returns the failure that has closed it as requests.Told, at once. request may go through another gate.
func (g *Gate) Do(request func() error) error {
	sent, err := g.enter()
	if err != nil {
		return notSentError{requests.Told(err)}
	}
	err = request()
	g.learn(sent, err)
	return err
}

// enter returns when a request is sent, or why none may be.
func (g *Gate) enter() (sent time.Time, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.err == nil {
		return now, nil
	}
	if now.Before(g.until) || !g.tries.IsZero() && now.Sub(g.tries) < hangTime {
		return now, g.err
	}
	g.tries = now
	return now, nil
}

// learn records the outcome of a request. Requests from before the present pause say nothing
// new, because many fail at the same moment.
func (g *Gate) learn(sent time.Time, err error) {
	closes := g.Closes
	if closes == nil {
		closes = ConcernsAll
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && !sent.After(g.since) {
		return
	}
	unsent := errors.As(err, new(notSentError))
	switch {
	case !unsent && closes(err):
		g.err, g.since, g.tries = err, time.Now(), time.Time{}
		g.until = g.since.Add(g.delay.Next(Short, err))
	case err == nil, !unsent && isAnswer(err):
		g.err, g.delay, g.tries = nil, Delay{}, time.Time{}
	case sent.Equal(g.tries):
		g.tries = time.Time{} // it ended without an answer
	}
}

// ConcernsAll tells whether the error of a request concerns requests with other credentials
// too: the API server can't be reached, has had too many requests, or fails.
func ConcernsAll(err error) bool {
	return LevelOf(err) != Object && !apierrors.IsUnauthorized(err)
}

// isAnswer tells whether the server has answered a request whose credential it accepts.
func isAnswer(err error) bool {
	return errors.As(err, new(apierrors.APIStatus)) && !apierrors.IsUnauthorized(err)
}
