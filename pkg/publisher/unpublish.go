package publisher

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// Unpublish removes a volume's mount and target directory, and releases its objects. It
// needs no API server and no knowledge of the volume; a volume that isn't there is success.
// A publish that still waits is cancelled. The logger of ctx names the volume's id.
func (p *Publisher) Unpublish(ctx context.Context, volumeID, target string) error {
	if err := checkForm(p.opts.KubeletDir, target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
	}
	end, err := p.beginUnpublish(ctx, volumeID)
	if err != nil {
		return err
	}
	defer end()
	ctx = p.withName(ctx, target)
	p.forgetFailure(volumeID)
	v := p.lookup(volumeID)
	if v != nil && v.request.Target != target {
		// The volume at the other target stays; here there can only be leftovers.
		v = nil
	}
	if v == nil {
		if err := p.unmount(ctx, volumeID, target); err != nil {
			return err
		}
		klog.FromContext(ctx).V(2).Info("Unpublished volume", "reason", "the kubelet asked for it; this process has not published it")
		return nil
	}
	if err := v.worker.lock(ctx); err != nil {
		return fail(ReasonUnavailable, "volume %s: %w: %w", volumeID, errPodBusy, err)
	}
	defer v.worker.unlock()
	if err := v.giveBack(); err != nil {
		return err
	}
	if err := p.unmount(ctx, volumeID, target); err != nil {
		return err
	}
	v.forget()
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Unpublished volume", "pod", klog.KRef(v.request.Pod.Namespace, v.request.Pod.Name), "refs", describe(v.refs, v.contents.shown), "reason", "the kubelet asked for it")
	}
	return nil
}

func (p *Publisher) unmount(ctx context.Context, volumeID, target string) error {
	switch err := p.opts.Mounts.Unmount(ctx, volumeID, target); {
	case errors.Is(err, mount.ErrOutside):
		return fail(ReasonInvalid, "target_path: %w", err)
	case err != nil:
		return fmt.Errorf("unmount volume %s from %s: %w", volumeID, target, err)
	}
	p.forget(volumeID, target)
	return nil
}

// drop forgets a volume whose mount has vanished, as after a reboot.
func (v *published) drop(ctx context.Context) error {
	if err := v.worker.lock(ctx); err != nil {
		return fail(ReasonUnavailable, "volume %s: %w: %w", v.request.VolumeID, errPodBusy, err)
	}
	defer v.worker.unlock()
	return v.dropLocked(ctx)
}

// dropLocked is drop for a caller that holds the lock of the pod.
func (v *published) dropLocked(ctx context.Context) error {
	klog.FromContext(ctx).Info("Volume is no longer mounted: forgetting it", "target", v.request.Target)
	v.forget()
	return v.giveBack()
}

// forget ends a volume's life in this process. The caller holds the lock of the pod.
func (v *published) forget() {
	v.p.remove(v)
}
