package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenTime is how long after a restart a volume may be without a token before that counts
// as a fault: the kubelet publishes again within one and a half minutes.
const tokenTime = 3 * time.Minute

// proof is what the API server said of the tokens that requests for a volume brought. The
// lock of the contents guards it.
//
// No token is used before it was proven to be the pod's own. What a request says of a pod is
// not enough where objects are shared by all pods of a service account: without
// podInfoOnMount it is what the pod's author wrote, and without tokenRequests the token is.
type proof struct {
	errand
	// done says that one was, now or before a restart: the volume's pod is who it claims to
	// be.
	done bool
	// held is the one that is used, and tried the last one that was asked about.
	held, tried volume.Token
}

// needsToken says whether a volume's objects are read with the token of its pod.
func (p *Publisher) needsToken(v *published) bool {
	return p.opts.Identity != nil && len(v.reviewed) > 0
}

// identify proves once that the token of a new volume's pod is its own, and has it used from
// then on.
func (p *Publisher) identify(ctx context.Context, v *published) error {
	if !p.needsToken(v) || v.contents.proof.done {
		return nil
	}
	token := p.offered(v)
	if err := p.prove(ctx, v, token); err != nil {
		return err
	}
	p.accept(v, token)
	return nil
}

// prove asks once whether a token is the own one of a volume's pod. ReasonForbidden says that
// it is not, ReasonUnavailable that there was no answer.
func (p *Publisher) prove(ctx context.Context, v *published, token volume.Token) error {
	err := p.opts.Identity.Prove(ctx, v.request.Pod, token)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, authz.ErrNotThePods), apierrors.IsForbidden(err):
		return fail(ReasonForbidden, "%w", err)
	}
	return fail(ReasonUnavailable, "%w", err)
}

// renew notes the token of a request for a volume that is mounted, if its objects are read
// any more. It does not wait, and can't fail: without a token the volume stays as it is.
func (p *Publisher) renew(v *published, request *Request) {
	if !p.needsToken(v) || request.TokenErr != nil || v.spec.Pinned() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !v.offered.Same(request.Token) {
		v.offered = request.Token
		p.queue.Add(v.request.VolumeID)
	}
}

// offered returns the token that the last request brought.
func (p *Publisher) offered(v *published) volume.Token {
	p.mu.Lock()
	defer p.mu.Unlock()
	return v.offered
}

// identifyLater has the token of a live volume's last request proven, and used from then on.
// The error says that none ever was: nothing may be shown meanwhile of what the pod's account
// may read. The caller holds the lock of the contents.
func (p *Publisher) identifyLater(ctx context.Context, v *published) error {
	if !p.needsToken(v) {
		return nil
	}
	state, token := &v.contents.proof, p.offered(v)
	err := fmt.Errorf("%w: service account %s: %w", errUnreviewed, v.request.Pod.Account(), authz.ErrNoToken)
	if token.Reveal() != "" && !token.Same(state.held) {
		if !token.Same(state.tried) {
			state.retryAt = time.Time{}
		}
		err = p.later(ctx, v, &state.errand, errUnreviewed, func(ctx context.Context) func() error {
			err := p.prove(ctx, v, token)
			return func() error {
				state.tried = token
				p.judgeToken(ctx, v, token, err)
				return err
			}
		})
	}
	if state.done {
		return nil
	}
	return err
}

// judgeToken takes in what became of a token of a live volume. The caller holds the lock of
// the contents.
func (p *Publisher) judgeToken(ctx context.Context, v *published, token volume.Token, err error) {
	switch {
	case err == nil:
		p.accept(v, token)
	case v.contents.proof.done && ReasonOf(err) == ReasonForbidden:
		klog.FromContext(ctx).Error(err, "The token of a republish is not used", "volumeID", v.request.VolumeID)
	}
}

// accept has a token used that was proven to be the pod's own. Where there was none of the
// pod's account, whatever waited for one goes on. The caller holds the lock of the contents
// or owns a volume that never was live.
func (p *Publisher) accept(v *published, token volume.Token) {
	v.contents.proof.done, v.contents.proof.held = true, token
	first := p.opts.Identity.Put(v.request.Pod, v.request.VolumeID, token)
	p.opts.Objects.Renewed(v.request.Pod.Account())
	if first {
		p.resyncAccount(v.request.Pod.Account())
	}
}

// resyncAccount makes a resync due for the live volumes of a service account's pods.
func (p *Publisher) resyncAccount(account volume.Account) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, v := range p.volumes {
		if v.live && v.request.Pod.Account() == account {
			v.due = true
			p.queue.Add(id)
		}
	}
}
