package publisher

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// republish answers a publish of a volume that is live, as after each restart of
// the kubelet. It must not validate anything that could newly fail: a final error
// makes the kubelet destroy the volume of a running pod.
func (p *Publisher) republish(ctx context.Context, request *Request) (live bool, err error) {
	v := p.lookup(request.VolumeID)
	if v == nil {
		return false, p.checkFound(request)
	}
	if what := v.request.differs(request); what != "" {
		return false, fail(ReasonExists, "volume %s is published already, with another %s", request.VolumeID, what)
	}
	switch err := p.opts.Mounts.Check(ctx, request.VolumeID, request.Target); {
	case err == nil:
		if v.request.Derived && v.request.misderived(request) && p.isNews(request.VolumeID, "misderived") {
			klog.FromContext(ctx).Info("The kubelet's request is not the one that was derived from the pod's spec", "derivedFor", v.request.Pod)
		}
		if request.TokenErr == nil && !v.spec.Pinned() {
			if err := v.offer(request.Token); err != nil && p.isNews(request.VolumeID, err.Error()) {
				klog.FromContext(ctx).Error(err, "The token of a republish is not used")
			}
		}
		return true, nil
	case errors.Is(err, mount.ErrNotMounted):
		return false, v.drop(ctx)
	case errors.Is(err, mount.ErrForeign):
		p.leave(ctx, request, unproven(request))
		return true, v.drop(ctx)
	default:
		return false, fail(ReasonUnavailable, "prove the mount of live volume %s: %w", request.VolumeID, err)
	}
}

// isMounted says whether the volume of a request is mounted at its target, though it is not
// live: an earlier process has mounted it.
func (p *Publisher) isMounted(ctx context.Context, request *Request) (bool, error) {
	err := p.opts.Mounts.Check(ctx, request.VolumeID, request.Target)
	if errors.Is(err, mount.ErrForeign) || errors.Is(err, mount.ErrOutside) {
		if refusal := p.validate(request); refusal != nil {
			return false, refusal // nothing of this request can be mounted there
		}
	}
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, mount.ErrNotMounted):
		return false, nil
	case errors.Is(err, mount.ErrOutside):
		return false, fail(ReasonInvalid, "target_path: %w", err)
	case errors.Is(err, mount.ErrForeign):
		return false, fmt.Errorf("look at the target of volume %s: %w", request.VolumeID, err)
	}
	// It may well be mounted, and a pod may be reading it: a final error would have the
	// kubelet destroy it.
	return false, fail(ReasonUnavailable, "look at the target of volume %s: %w", request.VolumeID, err)
}

// unproven is why a mounted volume stays as it is: somebody has changed its attribute.
func unproven(request *Request) error {
	return fmt.Errorf("what is mounted at %s is not proven to be volume %s, as its root directory lacks the attribute: replace the pod: %w", request.Target, request.VolumeID, mount.ErrForeign)
}

// checkFound refuses a request for a volume that an earlier process has mounted elsewhere.
func (p *Publisher) checkFound(request *Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.volumes[request.VolumeID]; v != nil && v.isThere() && v.request.Target != request.Target {
		return fail(ReasonExists, "volume %s is published already, with another target path", request.VolumeID)
	}
	return nil
}

// leave has a mounted volume stay as it is, which an earlier process has published with another
// identity, or whose spec an earlier version took. A failed publish would keep the containers of its
// running pod from being restarted.
func (p *Publisher) leave(ctx context.Context, request *Request, reason error) {
	p.freeze(request, reason)
	if !p.isNews(request.VolumeID, reason.Error()) {
		return
	}
	klog.FromContext(ctx).Info("A mounted volume is not updated any more", "target", request.Target, "reason", reason.Error())
	p.opts.Events.Warn(request.Pod, eventVolumeUpdateFailed, reason.Error())
}
