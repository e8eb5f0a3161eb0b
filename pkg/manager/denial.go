package manager

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// denialTime is how long nothing but refusals must come before they count. An API
	// server that has just started refuses everybody until it has read the roles, and one of
	// several may lag behind the others.
	denialTime = 5 * time.Second
	// tokenTime is denialTime for the tokens of pods: the kubelet brings new ones, which it
	// does within one and a half minutes as a rule.
	tokenTime = 3 * time.Minute
)

// denial is that the API server refuses to tell of an object, or to tell of its changes, or
// tells nothing but states from before, as after its etcd was restored from a backup. The
// zero value is none. It is for who holds the lock of the known.
type denial struct {
	// since is when the first of an unbroken row of refusals came.
	since time.Time
	// err is the last refusal, once they count.
	err error
}

// add takes in a failed request, and returns true if from now on it is a denial, as refusals
// have come for as long as enough. Other failures tell nothing of the rights: a denial stays.
func (d *denial) add(err error, now time.Time, enough time.Duration) (news bool) {
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return false // a server that is behind says so before it tells an older state
	case !isRefusal(err) && !errors.Is(err, errStale):
		d.since = time.Time{}
		return false
	case d.since.IsZero():
		d.since = now
	}
	news = d.err == nil && now.Sub(d.since) >= enough
	if news || d.err != nil {
		d.err = err
	}
	return news
}

// isRefusal tells whether the API server has refused a request, for who sent it may not, or
// is nobody that it knows.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// enough returns how long refusals like err must last to count.
func (k *known) enough(err error) time.Duration {
	if ofPods := k.account != (volume.Account{}); ofPods && apierrors.IsUnauthorized(err) {
		return tokenTime
	}
	return denialTime
}

// shares takes in a failure that concerns this object and others, whichever was asked for.
// The refusal of a token is a denial of all objects that wait for one which is accepted.
func (k *known) shares(err error) {
	k.mu.Lock()
	denied := k.denial.add(err, time.Now(), k.enough(err))
	k.mu.Unlock()
	if denied {
		k.changed()
	}
}

// end takes in an answer, and returns true if there was a denial until now.
func (d *denial) end() (was bool) {
	was = d.err != nil
	*d = denial{}
	return was
}

// denied returns why changes are not told any more; nil while they are.
func (k *known) denied() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.denial.err == nil:
		return nil
	case apierrors.IsUnauthorized(k.denial.err):
		return fmt.Errorf("%s: its changes can't be had, for the API server accepts no token that it was asked with: %w", k.ref, k.denial.err)
	}
	return fmt.Errorf("%s: its changes can't be had: %w", k.ref, k.denial.err)
}
