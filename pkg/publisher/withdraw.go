package publisher

import (
	"context"
	"fmt"
	"maps"

	"github.com/refvol/refvol/pkg/volume"
)

// withdraw takes the files of refused objects away where an update could not. It needs nothing but the volume: the files
// themselves name the objects. The others stay as they were; an env file goes as a whole, until an update can be made.
// The caller holds the lock of the pod.
func (v *published) withdraw(ctx context.Context, refused map[volume.Ref]bool) error {
	if v.putOff(readTime) {
		return nil
	}
	return v.reopen(ctx, func(mnt Mount) error { return v.withdrawThrough(ctx, mnt, refused) })
}

// withdrawThrough is withdraw through a handle on the volume's mount.
func (v *published) withdrawThrough(ctx context.Context, mnt Mount, refused map[volume.Ref]bool) error {
	before, shown := v.contents.shown, maps.Clone(v.contents.shown)
	for ref := range refused {
		shown[ref] = volume.Version{}
	}
	v.contents.proven = false
	result, err := v.contents.writer.Withdraw(ctx, mnt.Root(), refused, shown.Encode())
	v.p.opts.Observer.Wrote(result.Changed, result.Bytes, err)
	if result.Changed {
		v.contents.switchedNow(true)
	}
	if err != nil {
		return fmt.Errorf("withdraw files of volume %s: %w", v.request.VolumeID, err)
	}
	v.contents.shown, v.contents.withdrawn = shown, maps.Clone(refused)
	v.condition.withdraw(refused)
	if result.Changed {
		v.logUpdate(ctx, before)
	}
	return v.measure(mnt)
}

// showsAny says whether files of one of refused are, or may be, there.
func (c *contents) showsAny(refused map[volume.Ref]bool) bool {
	for ref := range refused {
		if !c.withdrawn[ref] {
			return true
		}
	}
	return false
}
