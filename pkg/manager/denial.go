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
	// denialTime is how long only refusals must come before they count. An API server that
	// has just started refuses every request until it has read the roles, and one of several
	// servers may lag behind the others.
	denialTime = 5 * time.Second
	// tokenTime is denialTime for the tokens of pods. The kubelet brings new ones, usually
	// within one and a half minutes.
	tokenTime = 3 * time.Minute
)

// denial is a lasting refusal: the API server refuses the object or its changes, or sends only
// older states, as after its etcd was restored from a backup. The zero value is none. The
// lock of the known guards it.
type denial struct {
	// since is when the first of the consecutive refusals came.
	since time.Time
	// err is the last refusal, once they count.
	err error
}

// add records a failed request. It returns true if a denial begins with it, because refusals
// have come for the time of enough. Other failures say nothing about rights, so they don't
// end a denial.
func (d *denial) add(err error, now time.Time, enough time.Duration) (news bool) {
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge):
		return false // a server that lags behind says so instead of sending an older state
	case !isRefusal(err) && !errors.Is(err, errOlder):
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

// isRefusal tells whether the API server has refused a request because a right or an
// accepted credential is missing.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// enough returns how long refusals like err must last to count.
func (k *known) enough(err error) time.Duration {
	if k.openings.refusalsPass() && apierrors.IsForbidden(err) {
		return passTime
	}
	if ofPods := k.account != (volume.Account{}); ofPods && apierrors.IsUnauthorized(err) {
		return tokenTime
	}
	return denialTime
}

// shares records a failure of another object's request that concerns this object too: when a
// token is refused, all objects that wait for an accepted one are denied.
func (k *known) shares(err error) {
	k.mu.Lock()
	if apierrors.IsForbidden(err) {
		err = k.failure // which names no other object
	}
	denied := err != nil && k.denial.add(err, time.Now(), k.enough(err))
	k.mu.Unlock()
	if denied {
		k.changed()
	}
}

// end records an answer, and returns true if there was a denial until now.
func (d *denial) end() (was bool) {
	was = d.err != nil
	*d = denial{}
	return was
}

// denied returns why changes don't arrive any more, or nil while they do.
func (k *known) denied() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.deniedLocked()
}

func (k *known) deniedLocked() error {
	switch {
	case k.denial.err == nil:
		return nil
	case apierrors.IsUnauthorized(k.denial.err):
		return fmt.Errorf("%s: its changes can't be had, for the API server accepts no token that it was asked with: %w", k.ref, k.denial.err)
	}
	return fmt.Errorf("%s: its changes can't be had: %w", k.ref, k.denial.err)
}
