package publisher

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// tokenTime is how long after a restart a volume may be without a token before that counts
// as a fault: the kubelet publishes again within one and a half minutes.
const tokenTime = 3 * time.Minute

// identify proves once that the token of a new volume's pod is its own, and has it used from
// then on. What a request says of a pod is not enough where objects are shared by all pods of
// a service account: without podInfoOnMount it is what the pod's author wrote.
func (p *Publisher) identify(ctx context.Context, v *published) error {
	if p.opts.Identity == nil || v.proven {
		return nil
	}
	err := p.opts.Identity.Prove(ctx, v.request.Pod, v.request.Token)
	switch {
	case err == nil:
		v.proven = true
		p.put(v, v.request.Token)
		return nil
	case errors.Is(err, authz.ErrNotThePods), apierrors.IsForbidden(err):
		return fail(ReasonForbidden, "%w", err)
	}
	return fail(ReasonUnavailable, "%w", err)
}

// renew has the token of a request used for a volume that is mounted, if its objects are read
// any more. It does not wait, and can't fail: without a token the volume stays as it is.
func (p *Publisher) renew(v *published, request *Request) {
	if p.opts.Identity != nil && request.TokenErr == nil && !v.spec.Pinned() {
		p.put(v, request.Token)
	}
}

// put has a token used. Where there was none of the pod's account, whatever waited for one
// goes on.
func (p *Publisher) put(v *published, token volume.Token) {
	if p.opts.Identity.Put(v.request.Pod, v.request.VolumeID, token) {
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
