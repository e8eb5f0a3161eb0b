package access

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenState is what the API server said of the tokens that requests for a volume brought.
// Registration.mu guards it.
//
// No token is used before it was proven to be the pod's own. What a request says of a pod is
// not enough where objects are shared by all pods of a service account: without
// podInfoOnMount it is what the pod's author wrote, and without tokenRequests the token is.
type tokenState struct {
	// proven says that the volume's pod is who it claims to be.
	proven bool
	// offered is what the last request brought, held the one that is used.
	offered, held volume.Token
	// err is why offered is not used, and delay is what the next try waits.
	err   error
	delay backoff.Delay
}

// needsToken says whether the objects are read with the token of the pod.
func (r *Registration) needsToken() bool {
	return r.tracker.opts.Identity != nil && len(r.needs) > 0
}

// unproven returns why nothing may be shown of what the pod's account may read; nil once the
// pod is known to be of that account.
func (r *Registration) unproven() error {
	if !r.needsToken() {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.token.proven:
		return nil
	case r.token.err != nil:
		return &unreviewedError{r.token.err}
	case r.token.offered.Reveal() != "":
		return ErrPending
	}
	return &unreviewedError{fmt.Errorf("service account %s: %w", r.account(), authz.ErrNoToken)}
}

// prove proves once that the token of a new volume's pod is its own, and has it used from
// then on.
func (r *Registration) prove(ctx context.Context) error {
	if r.unproven() == nil {
		return nil
	}
	r.mu.Lock()
	token := r.token.offered
	r.mu.Unlock()
	var denied *DeniedError
	switch err := r.ask(ctx, token); {
	case errors.As(err, &denied):
		return err
	case err != nil:
		return &unreviewedError{err}
	}
	r.accept(token)
	return nil
}

// ask asks whether a token is the pod's own. A DeniedError says that it is not.
func (r *Registration) ask(ctx context.Context, token volume.Token) error {
	_, err := guarded(ctx, func() (bool, error) {
		return true, r.tracker.opts.Identity.Prove(ctx, r.opts.Pod, token)
	})
	if errors.Is(err, authz.ErrNotThePods) || apierrors.IsForbidden(err) {
		return &DeniedError{Err: err}
	}
	return err
}

// Offer brings the pod's next token. It does not wait, and can't fail: without a new token
// the volume goes on with the one before.
func (r *Registration) Offer(token volume.Token) {
	if !r.needsToken() {
		return
	}
	r.mu.Lock()
	if !r.token.offered.Same(token) {
		r.token.offered, r.token.err, r.token.delay = token, nil, backoff.Delay{}
	}
	r.mu.Unlock()
	r.checkToken()
}

// checkToken has the offered token proven, if it is not in use.
func (r *Registration) checkToken() {
	if !r.needsToken() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed && r.token.offered.Reveal() != "" && !r.token.offered.Same(r.token.held) {
		r.tracker.queue.Add(task{token: r})
	}
}

// proveOffered proves the offered token of a mounted volume.
func (t *Tracker) proveOffered(ctx context.Context, r *Registration) {
	r.mu.Lock()
	token := r.token.offered
	idle := r.closed || token.Same(r.token.held)
	r.mu.Unlock()
	if idle {
		return
	}
	ctx = forPod(ctx, r.opts.Pod)
	err := r.ask(ctx, token)
	if err == nil {
		r.accept(token)
		t.changedAll(r)
		return
	}
	r.mu.Lock()
	if !r.closed && token.Same(r.token.offered) {
		known := r.token.err
		r.token.err = err
		var denied *DeniedError
		if !errors.As(err, &denied) { // else the next resync, or another token
			t.queue.AddAfter(task{token: r}, retryAfter(&r.token.delay, err))
		} else if r.token.proven && !errors.As(known, &denied) {
			klog.FromContext(ctx).Error(err, "The token of a republish is not used", "volumeID", r.opts.VolumeID)
		}
	}
	r.mu.Unlock()
	t.changedAll(r)
}

// accept has a token used that was proven to be the pod's own. Where there was none of the
// pod's account, whatever waited for one goes on.
func (r *Registration) accept(token volume.Token) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.token.proven, r.token.held, r.token.err, r.token.delay = true, token, nil, backoff.Delay{}
	first := r.tracker.opts.Identity.Put(r.opts.Pod, r.opts.VolumeID, token)
	r.tracker.opts.Objects.Renewed(r.account())
	r.mu.Unlock()
	if first {
		r.tracker.opts.Renewed(r.account())
	}
}

// changedAll tells that the answers about each object of a registration may have changed.
func (t *Tracker) changedAll(r *Registration) {
	for _, ref := range r.opts.Refs {
		t.opts.Changed(r.account(), ref)
	}
}
