package manager

import (
	"errors"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// refusedScope is the level of the objects that one credential may not read, where refusals
// pass.
const refusedScope = backoff.Kind + 1

// scope is what a backoff concerns.
type scope struct {
	level   backoff.Level
	account volume.Account
	kind    volume.Kind
}

// scopesOf returns the scopes that an object is in.
func scopesOf(p *candidate) []scope {
	in := []scope{scopeOf(p, backoff.Node), scopeOf(p, backoff.Credential), scopeOf(p, backoff.Kind)}
	if p.refusal != nil {
		in = append(in, scopeOf(p, refusedScope))
	}
	return in
}

// scopeOf returns the scope of a level that an object is in.
func scopeOf(p *candidate, l backoff.Level) scope {
	in := scope{level: l}
	if l >= backoff.Credential {
		in.account = p.account
	}
	if l == backoff.Kind {
		in.kind = p.Kind
	}
	return in
}

// scopes holds the pause of each scope that has one. A pause and those after it end with the
// first success.
// The lock of the openings guards it.
type scopes map[scope]*pause

// pause is the present pause of one scope.
type pause struct {
	// began is when the first pause began, since is when the present one began, and until is
	// when it ends.
	began, since, until time.Time
	delay               backoff.Delay
	// probe is the opening whose success ends the pauses.
	probe *opening
	// err is the last failure, as other objects get it.
	err error
}

// admit tells whether an opening of p may begin: none of its scopes is in a pause or waits for
// a probe.
func (s scopes) admit(p *candidate) bool {
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

// probe makes an opening that begins the probe of its scopes' pauses.
func (s scopes) probe(op *opening) {
	for _, in := range scopesOf(op.candidate) {
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
func (s scopes) learn(op *opening, err error, failed backoff.Level) (length time.Duration) {
	passed := passedScopes(err)
	for _, in := range scopesOf(op.candidate) {
		b := s[in]
		// An object that was not refused before asks during the pause of those that were.
		if b != nil && (!op.began.After(b.since) || in.level == refusedScope && time.Now().Before(b.until)) {
			continue
		}
		switch {
		case in.level == failed:
			if b == nil {
				s.sweep()
				b = &pause{began: time.Now()}
				s[in] = b
			}
			length = b.next(in.level, err)
		case b != nil && in.level <= passed:
			delete(s, in)
		}
	}
	return length
}

// unused is how long a pause is kept after its end if no request follows. None does if the account
// has no objects any more.
const unused = 10 * time.Minute

// sweep removes the pauses that concern nothing any more.
func (s scopes) sweep() {
	maps.DeleteFunc(s, func(_ scope, b *pause) bool { return b.probe == nil && time.Since(b.until) > unused })
}

// cause returns the failure for which p may not be opened, or nil.
func (s scopes) cause(p *candidate) error {
	for _, in := range scopesOf(p) {
		if b := s[in]; b != nil {
			return b.err
		}
	}
	return nil
}

// next begins the next pause, and returns its length.
func (b *pause) next(l backoff.Level, err error) time.Duration {
	most := backoff.Short
	// An attempt to connect costs the server little.
	if l != backoff.Node && time.Since(b.began) >= backoff.Lasting {
		most = backoff.Long
		if l == refusedScope {
			most = refusedBackoff
		}
	}
	length := b.delay.Next(most, err)
	b.since, b.err = time.Now(), backoff.Shared(err)
	b.until = b.since.Add(length)
	return length
}

// toldOf returns what the pods of an object may learn of the failure of a request for it. What concerns more
// than the object may be about another one, also where the request failed that asked for this one.
func toldOf(err error) error {
	if reach(err) == backoff.Object {
		return err
	}
	return backoff.Shared(err)
}

// isShared tells whether a failure concerns more than the object, so that the backoff of a
// scope delays the next request. If the server fails, the object may be the reason.
func isShared(err error) bool {
	failed := reach(err)
	return failed == backoff.Node || failed == backoff.Credential
}

// reach returns the level of the error of a request.
func reach(err error) backoff.Level {
	if errors.Is(err, errSilent) || errors.Is(err, errMadeRoom) || errors.Is(err, errNoCredential) {
		return backoff.Object
	}
	return backoff.LevelOf(err)
}

// passedScopes returns the last level, in their order, for which an answer is a success.
func passedScopes(err error) backoff.Level {
	switch l := reach(err); {
	case err == nil, isAbsent(err):
		return backoff.Kind
	case l == backoff.Kind:
		return backoff.Credential
	case l == backoff.Credential:
		return backoff.Node
	case l == backoff.Object && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		// After a 403 it isn't known whether the kind's objects can be read.
		return backoff.Credential
	}
	return backoff.Object
}
