package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/refvol/refvol/pkg/mount"
)

// maxKept is how many handles are kept at most, of two descriptors each.
const maxKept = 512

// reopen calls write with a handle on the volume's mount. A volume that is no longer mounted is dropped, and nothing is
// written. Its author is told if something is mounted there that is not proven to be the volume, as when its attribute
// was spoilt. The handle is kept until the last generation that is to go has gone: to open one costs as much as a small
// write, and to close one has the kernel wait for all processors. The caller holds the lock of the pod.
func (v *published) reopen(ctx context.Context, write func(Mount) error) (err error) {
	mnt, err := v.open(ctx)
	if errors.Is(err, mount.ErrNotMounted) {
		if errors.Is(err, mount.ErrForeign) { // first, for an unpublish may come right after the drop
			v.p.leave(ctx, &v.request, unproven(&v.request))
		}
		return v.dropLocked(ctx)
	}
	if err != nil {
		return fmt.Errorf("open volume %s at %s: %w", v.request.VolumeID, v.request.Target, err)
	}
	written := false
	defer func() { // also when the write panics
		if written && err == nil && v.contents.leftover == nil && !v.contents.pruneAt.IsZero() && v.p.kept.TryAcquire(1) {
			v.contents.kept = mnt
			return
		}
		err = errors.Join(err, mnt.Close())
	}()
	err = write(mnt)
	written = true
	return err
}

// open takes the handle that is kept, if its volume is still what is mounted at the target, or opens one.
func (v *published) open(ctx context.Context) (Mount, error) {
	if kept := v.contents.kept; kept != nil {
		if kept.StillAt(v.request.Target) {
			v.contents.kept = nil
			v.p.kept.Release(1)
			return kept, nil
		}
		if err := v.giveBack(); err != nil {
			return nil, err
		}
	}
	return v.p.opts.Mounts.Reopen(ctx, v.request.VolumeID, v.request.Target)
}

// giveBack closes the handle that is kept, if there is one. The caller holds the lock of the pod.
func (v *published) giveBack() error {
	kept := v.contents.kept
	if kept == nil {
		return nil
	}
	v.contents.kept = nil
	v.p.kept.Release(1)
	return kept.Close()
}

// giveBackAll closes the handles that are kept, but for those of pods whose reconcile hangs.
func (p *Publisher) giveBackAll() {
	p.mu.Lock()
	all := slices.Collect(maps.Values(p.volumes))
	p.mu.Unlock()
	nobodyWaits, cancel := context.WithCancel(context.Background())
	cancel()
	for _, v := range all {
		if v.worker != nil && v.worker.lock(nobodyWaits) == nil {
			_ = v.giveBack() // the process ends
			v.worker.unlock()
		}
	}
}
