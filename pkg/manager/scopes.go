package manager

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// A backoff begins with minBackoff and doubles up to shortBackoff, so that files are
	// current soon after a short outage. After lastingTime it doubles up to longBackoff. Each
	// pause is up to twice as long, at random, since many nodes back off at the same moment.
	minBackoff   = 250 * time.Millisecond
	shortBackoff = 2500 * time.Millisecond
	longBackoff  = 30 * time.Second
	lastingTime  = time.Minute
	// maxRetryAfter is the longest Retry-After that is obeyed.
	maxRetryAfter = time.Minute
)

// level is how much a failure concerns.
type level int

const (
	// objectScope is one object: a missing right, an expired version, no answer.
	objectScope level = iota
	// nodeScope is every request: the server can't be reached.
	nodeScope
	// credentialScope is every request with one credential: the server doesn't accept it, or
	// has had too many requests.
	credentialScope
	// kindScope is one kind of object, read with one credential: the server fails.
	kindScope
	// refusedScope is the objects that one credential may not read, where refusals pass.
	refusedScope
)

// scope is what a backoff concerns.
type scope struct {
	level   level
	account volume.Account
	kind    volume.Kind
}

// scopesOf returns the scopes that an object is in.
func scopesOf(p *place) []scope {
	in := []scope{scopeOf(p, nodeScope), scopeOf(p, credentialScope), scopeOf(p, kindScope)}
	if p.refused {
		in = append(in, scopeOf(p, refusedScope))
	}
	return in
}

// scopeOf returns the scope of a level that an object is in.
func scopeOf(p *place, l level) scope {
	in := scope{level: l}
	if l >= credentialScope {
		in.account = p.account
	}
	if l == kindScope {
		in.kind = p.Kind
	}
	return in
}

// scopes holds the backoff of each scope that has one. A backoff ends with the first success.
// The lock of the openings guards it.
type scopes map[scope]*backoff

// backoff is the pause of one scope.
type backoff struct {
	// began is when the first pause began, since is when the present one began, and until is
	// when it ends.
	began, since, until time.Time
	delay               time.Duration
	// probe is the opening whose success ends the backoff.
	probe *opening
	// err is the last failure.
	err error
}

// admit tells whether an opening of p may begin: none of its scopes is in a pause or waits for
// a probe.
func (s scopes) admit(p *place) bool {
	if len(s) == 0 {
		return true
	}
	for _, in := range scopesOf(p) {
		if b := s[in]; b != nil && (b.probe != nil || time.Now().Before(b.until)) {
			return false
		}
	}
	return true
}

// probe makes an opening that begins the probe of its scopes' backoffs.
func (s scopes) probe(op *opening) {
	for _, in := range scopesOf(op.place) {
		if b := s[in]; b != nil {
			b.probe = op
			op.probes = append(op.probes, b)
		}
	}
}

// release lets another opening probe instead of op.
func (s scopes) release(op *opening) {
	for _, b := range op.probes {
		if b.probe == op {
			b.probe = nil
		}
	}
	op.probes = nil
}

// learn records the outcome of a request, whose failure concerns a level, and returns the
// length of the pause that begins, or zero. It ignores requests from before the present pause,
// because many fail or succeed at the same moment.
func (s scopes) learn(op *opening, err error, failed level) (pause time.Duration) {
	passed := passedScopes(err)
	for _, in := range scopesOf(op.place) {
		b := s[in]
		if b != nil && !op.began.After(b.since) {
			continue
		}
		switch {
		case in.level == failed:
			if b == nil {
				b = &backoff{began: time.Now()}
				s[in] = b
			}
			pause = b.grow(in.level, err)
		case b != nil && in.level <= passed:
			delete(s, in)
		}
	}
	return pause
}

// cause returns the failure for which p may not be opened, or nil.
func (s scopes) cause(p *place) error {
	for _, in := range scopesOf(p) {
		if b := s[in]; b != nil {
			return b.err
		}
	}
	return nil
}

// grow begins the next pause, and returns its length.
func (b *backoff) grow(l level, err error) time.Duration {
	most := shortBackoff
	// An attempt to connect costs the server little.
	if l != nodeScope && time.Since(b.began) >= lastingTime {
		most = longBackoff
		if l == refusedScope {
			most = refusedBackoff
		}
	}
	b.delay = min(max(2*b.delay, minBackoff), most)
	wait := withJitter(b.delay, b.delay)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		asked := min(time.Duration(seconds)*time.Second, maxRetryAfter)
		wait = max(wait, withJitter(asked, max(asked/2, time.Second)))
	}
	b.since, b.err = time.Now(), err
	b.until = b.since.Add(wait)
	return wait
}

func withJitter(d, most time.Duration) time.Duration { return d + rand.N(most) }

// isShared tells whether a failure concerns more than the object, so that the backoff of a
// scope delays the next request. If the server fails, the object may be the reason.
func isShared(err error) bool {
	failed := reach(err)
	return failed == nodeScope || failed == credentialScope
}

// reach returns the level of the error of a request.
func reach(err error) level {
	switch status := apierrors.APIStatus(nil); {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, errSilent), errors.Is(err, errMadeRoom), errors.Is(err, errNoCredential):
		return objectScope
	case errors.As(err, &status):
		return reachOf(status)
	case errors.As(err, new(*url.Error)):
		return nodeScope
	}
	return objectScope
}

func reachOf(status apierrors.APIStatus) level {
	err := error(nil)
	if e, ok := status.(error); ok {
		err = e
	}
	switch code := status.Status().Code; {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return objectScope // a 504
	case code == http.StatusUnauthorized, code == http.StatusTooManyRequests:
		return credentialScope
	case code >= http.StatusInternalServerError:
		return kindScope
	}
	return objectScope
}

// passedScopes returns the last level, in their order, for which an answer is a success.
func passedScopes(err error) level {
	switch l := reach(err); {
	case err == nil, isAbsent(err):
		return refusedScope
	case l == kindScope:
		return credentialScope
	case l == credentialScope:
		return nodeScope
	case l == objectScope && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		// After a 403 it isn't known whether the kind's objects can be read.
		return credentialScope
	}
	return objectScope
}
