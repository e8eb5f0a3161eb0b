package manager

import (
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// denialTime is how long requests must have been refused before that counts as a denial. An API server that has just started refuses
	// every request until it has read the roles, and one of several servers may lag behind the others.
	denialTime = 5 * time.Second
	// passTime replaces denialTime for refusals that may pass. tokenTime replaces it for the tokens of pods: the kubelet brings new ones,
	// usually within one and a half minutes.
	passTime  = time.Minute
	tokenTime = 3 * time.Minute
)

// denial is a lasting refusal: the API server refuses the object or its changes, or sends only older states, for example after its etcd was
// restored from a backup. The zero value is no denial. The lock of the item guards it.
type denial struct {
	// since is when the first of the consecutive refusals came. err is the last refusal, once they count as a denial.
	since time.Time
	err   error
}

// add records a failed request. It returns true if this starts a denial, because refusals have come for at least enough. Other failures say
// nothing about rights, so they don't end a denial.
func (d *denial) add(err error, now time.Time, enough time.Duration) (news bool) {
	switch {
	case isTooLarge(err):
		return false // a server that lags behind says this instead of sending an older state
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

// clear records an answer, and reports whether it ended a denial.
func (d *denial) clear() (was bool) {
	was = d.err != nil
	*d = denial{}
	return was
}

// isRefusal reports whether the API server refused a request because a right or an accepted credential is missing.
func isRefusal(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// denialDelay returns how long refusals like err must last before they count as a denial.
func (m *Manager) denialDelay(account volume.ServiceAccount, err error) time.Duration {
	switch {
	case m.refusalsPass && apierrors.IsForbidden(err):
		return passTime
	case account != (volume.ServiceAccount{}) && apierrors.IsUnauthorized(err):
		return tokenTime
	}
	return denialTime
}

// denialErrLocked returns why changes don't arrive any more, or nil while they arrive. The caller holds the lock.
func (it *item) denialErrLocked() error {
	err := it.state.denial.err
	if err == nil {
		err = it.credentialErr()
	}
	if it.closed != nil {
		err = nil
	}
	switch {
	case err == nil:
		return nil
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: it can't be kept up to date, because the API server accepts none of the tokens that were sent: %w", it.ref, err)
	}
	return fmt.Errorf("%s: it can't be kept up to date: %w", it.ref, err)
}

// credentialErr returns why requests wait if no credential of the account has been accepted for a long time. Only the request that probes
// sees that error itself.
func (it *item) credentialErr() (why error) {
	since, waits := it.m.requests.Err(it.account)
	if apierrors.IsUnauthorized(waits) && time.Since(since) >= it.m.denialDelay(it.account, waits) {
		why = waits
	}
	return why
}

func (it *item) denialErr() error {
	it.mu.Lock()
	defer it.mu.Unlock()
	return it.denialErrLocked()
}
