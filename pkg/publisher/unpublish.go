package publisher

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// Unpublish removes a volume's mount, target directory and record, and releases
// its objects. It needs no record, no API server and no knowledge of the volume; a
// volume that isn't there is success. A publish that still waits is cancelled.
func (p *Publisher) Unpublish(ctx context.Context, volumeID, target string) error {
	if err := checkForm(p.opts.KubeletDir, target); err != nil {
		return fail(ReasonInvalid, "target_path: %w", err)
	}
	end, err := p.beginUnpublish(ctx, volumeID)
	if err != nil {
		return err
	}
	defer end()
	p.forgetFailure(volumeID)
	v := p.lookup(volumeID)
	if v != nil && v.request.Target != target {
		// The volume at the other target stays; here there can only be leftovers.
		v = nil
	}
	if v == nil {
		return p.unmount(ctx, volumeID, target)
	}
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	// A handle would keep the file system after the unmount.
	if err := errors.Join(p.giveBack(v), p.unmount(ctx, volumeID, target)); err != nil {
		return err
	}
	return p.forget(v)
}

func (p *Publisher) unmount(ctx context.Context, volumeID, target string) error {
	switch err := p.opts.Mounts.Unmount(ctx, volumeID, target); {
	case errors.Is(err, mount.ErrOutside):
		return fail(ReasonInvalid, "target_path: %w", err)
	case err != nil:
		return fmt.Errorf("unmount volume %s from %s: %w", volumeID, target, err)
	}
	if p.lookup(volumeID) != nil {
		return nil
	}
	return p.records.remove(volumeID)
}

// drop forgets a volume whose mount has vanished, as after a reboot.
func (p *Publisher) drop(ctx context.Context, v *published) {
	v.contents.mu.Lock()
	defer v.contents.mu.Unlock()
	p.dropLocked(ctx, v)
}

// dropLocked is drop for a caller that holds the lock of the contents.
func (p *Publisher) dropLocked(ctx context.Context, v *published) {
	logger := klog.FromContext(ctx)
	logger.Info("Volume is no longer mounted: forgetting it", "volumeID", v.request.VolumeID, "target", v.request.Target)
	if err := p.forget(v); err != nil {
		logger.Error(err, "Record of a dropped volume stays behind until the next start", "volumeID", v.request.VolumeID)
	}
}

// forget ends a volume's life in this process and its record. The caller holds the
// lock of the contents.
func (p *Publisher) forget(v *published) error {
	v.contents.gone = true
	p.leave(v)
	err := errors.Join(p.giveBack(v), p.records.remove(v.request.VolumeID))
	p.remove(v)
	return err
}
