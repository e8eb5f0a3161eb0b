package manager

import (
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// fewRefused is how many refused objects of a credential ask each for itself. A few may be
	// refused for good, such as those of a pod that was deleted by force.
	fewRefused = 3
	// refusedBackoff is the longest backoff after refusals that pass, once they have lasted.
	refusedBackoff = 5 * time.Second
	// passTime is denialTime for refusals that pass.
	passTime = time.Minute
)

// refusals holds the objects that were refused to each credential since it last got an answer.
// More than fewRefused share a backoff: one of them asks for all, and its answer lets all ask.
// Objects that were not refused don't wait. It is nil unless refusals pass. The lock of the
// openings guards it.
type refusals map[volume.Account]map[*candidate]struct{}

// learn records the outcome of a request. If it was a refusal, it returns how many objects are
// refused.
func (r refusals) learn(p *candidate, err error) (refused int) {
	switch {
	case r == nil:
		return 0
	case err == nil, isAbsent(err):
		for refused := range r[p.account] {
			refused.refusal = nil
		}
		delete(r, p.account)
	case apierrors.IsForbidden(err) && !p.closed:
		if r[p.account] == nil {
			r[p.account] = map[*candidate]struct{}{}
		}
		p.refusal = err
		r[p.account][p] = struct{}{}
		return len(r[p.account])
	}
	return 0
}

// forget takes out an object that is closed. With the last one the backoff goes.
func (o *openings) forget(p *candidate) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p.closed, p.refusal = true, nil
	delete(o.refusals[p.account], p)
	if len(o.refusals[p.account]) == 0 {
		delete(o.refusals, p.account)
		delete(o.scopes, scopeOf(p, refusedScope))
	}
}

// refusalsPass tells whether they do; see Options.RefusalsPass. It never changes.
func (o *openings) refusalsPass() bool { return o.refusals != nil }

// pacesRefused tells whether a shared backoff delays the next request for p, as it was refused.
func (o *openings) pacesRefused(p *candidate) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return p.refusal != nil && o.scopes[scopeOf(p, refusedScope)] != nil
}

// longestBackoff returns that of p by itself. lasts says that its failures have lasted.
func (o *openings) longestBackoff(p *candidate, lasts bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !lasts:
		return backoff.Short
	case p.refusal != nil:
		return refusedBackoff
	}
	return backoff.Long
}
