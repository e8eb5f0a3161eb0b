package manager

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// denialTime is how long nothing but refusals must come before they count. An API
// server that has just started refuses everybody until it has read the roles, and one of
// several may lag behind the others.
const denialTime = 5 * time.Second

// denial is that the API server refuses to tell any more of an object which is known, or
// tells nothing but states from before, as after its etcd was restored from a backup. The
// zero value is none. It is for who holds the lock of the known.
type denial struct {
	// since is when the first of an unbroken row of refusals came.
	since time.Time
	// err is the last refusal, once they count.
	err error
}

// add takes in a failed request, and returns true if from now on it is a denial. Other
// failures tell nothing of the rights: a denial stays.
func (d *denial) add(err error, now time.Time) (news bool) {
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return false // a server that is behind says so before it tells an older state
	case !apierrors.IsForbidden(err) && !errors.Is(err, errStale):
		d.since = time.Time{}
		return false
	case d.since.IsZero():
		d.since = now
	}
	news = d.err == nil && now.Sub(d.since) >= denialTime
	if news || d.err != nil {
		d.err = err
	}
	return news
}

// end takes in an answer, and returns true if there was a denial until now.
func (d *denial) end() (was bool) {
	was = d.err != nil
	*d = denial{}
	return was
}

// denied returns why the present state can't be had any more; nil while it can.
func (k *known) denied() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.denial.err == nil {
		return nil
	}
	return fmt.Errorf("%s: what is known of it stays: %w", k.ref, k.denial.err)
}
