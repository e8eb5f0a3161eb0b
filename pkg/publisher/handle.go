package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/refvol/refvol/pkg/mount"
)

// reopen calls write with a handle on the volume's mount. A volume that is no longer mounted is dropped, and nothing is
// written. Its author is told if something is mounted there that is not proven to be the volume, as when its attribute
// was spoilt. The caller holds the lock of the pod.
func (v *published) reopen(ctx context.Context, write func(Mount) error) (err error) {
	mnt, err := v.p.opts.Mounts.Reopen(ctx, v.request.VolumeID, v.request.Target)
	if errors.Is(err, mount.ErrNotMounted) {
		if errors.Is(err, mount.ErrForeign) { // first, for an unpublish may come right after the drop
			v.p.leave(ctx, &v.request, unproven(&v.request))
		}
		v.dropLocked(ctx)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open volume %s at %s: %w", v.request.VolumeID, v.request.Target, err)
	}
	defer func() { err = errors.Join(err, mnt.Close()) }() // also when the write panics
	return write(mnt)
}
