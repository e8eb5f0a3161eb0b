// Package backoff says how long requests to the API server pause after a failure, and how much
// a failure concerns.
//
// It owns the growth of pauses, their jitter, and the obedience to Retry-After. It must not
// know what is asked for, nor what becomes of a failure.
package backoff

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The lengths of pauses. The jitter adds up to as much to each.
const (
	// Min is the first pause.
	Min = 250 * time.Millisecond
	// Short is the longest one in a short outage, so that files are current soon after it.
	Short = 2500 * time.Millisecond
	// Long is the longest one in an outage that has taken Lasting.
	Long    = 30 * time.Second
	Lasting = time.Minute
	// maxRetryAfter is the longest Retry-After that is obeyed.
	maxRetryAfter = time.Minute
)

// Delay is the pause between requests that fail one after the other. The zero Delay is that
// before the first failure. It is not safe for concurrent use.
type Delay struct{ last time.Duration }

// Next returns the pause after another failure. The first one is Min, and each next one is
// twice as long, up to most. The jitter adds up to as much again, because many nodes fail at
// the same moment. If err has a longer Retry-After, that is obeyed, up to a minute, with jitter.
func (d *Delay) Next(most time.Duration, err error) time.Duration {
	d.last = min(max(2*d.last, Min), most)
	wait := withJitter(d.last, d.last)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		asked := min(time.Duration(seconds)*time.Second, maxRetryAfter)
		wait = max(wait, withJitter(asked, max(asked/2, time.Second)))
	}
	return wait
}

func withJitter(d, most time.Duration) time.Duration { return d + rand.N(most) }

// Level is how much a failure concerns.
type Level int

// The levels.
const (
	// Object is one object: a missing right, an expired version, an end of the caller's own.
	Object Level = iota
	// Node is every request of the node: the server can't be reached, or doesn't answer.
	Node
	// Credential is every request with one credential: the server doesn't accept it, or has
	// had too many requests.
	Credential
	// Kind is one kind of object, asked for with one credential: the server fails.
	Kind
)

// LevelOf returns the level of the error of a request; Object for nil.
func LevelOf(err error) Level {
	status := apierrors.APIStatus(nil)
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return Object
	case errors.As(err, &status):
		return levelOf(status)
	case errors.As(err, new(*url.Error)), errors.As(err, new(notSentError)):
		return Node
	}
	return Object
}

func levelOf(status apierrors.APIStatus) Level {
	err, _ := status.(error)
	switch code := status.Status().Code; {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return Object // a 504
	case code == http.StatusUnauthorized, code == http.StatusTooManyRequests:
		return Credential
	case code >= http.StatusInternalServerError:
		return Kind
	}
	return Object
}
