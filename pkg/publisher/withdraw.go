package publisher

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// withdraw takes the files of refused objects away where an update could not. It needs
// nothing but the volume: the files themselves name the objects. The others stay as they were;
// an env file goes as a whole, until an update can be made, and so do files that name no object
// if they may be those of a refused one. The caller holds the lock of the pod.
func (v *published) withdraw(ctx context.Context, refused map[volume.Ref]bool) error {
	if v.putOff(readTime) {
		return nil
	}
	return v.reopen(ctx, func(mnt Mount) error { return v.withdrawThrough(ctx, mnt, refused) })
}

// withdrawThrough is withdraw through a handle on the volume's mount.
func (v *published) withdrawThrough(ctx context.Context, mnt Mount, refused map[volume.Ref]bool) error {
	v.contents.proven = false
	unnamed := v.contents.mayBeUnnamed(refused)
	result, err := v.contents.writer.Withdraw(ctx, mnt.Root(), refused, unnamed)
	v.p.opts.Observer.Wrote(result.Changed, result.Bytes, err)
	if result.Changed && v.contents.writer.Stale() {
		v.contents.switched = time.Now()
	}
	if err != nil {
		return fmt.Errorf("withdraw files of volume %s: %w", v.request.VolumeID, err)
	}
	gone := maps.Clone(refused)
	if unnamed {
		still, err := v.contents.writer.Shows(ctx, mnt.Root(), v.contents.unnamed)
		if err != nil {
			return fmt.Errorf("read which objects the files of volume %s name: %w", v.request.VolumeID, err)
		}
		for ref := range v.contents.unnamed {
			if !still[ref] {
				gone[ref] = true
			}
		}
		v.contents.unnamed = nil
	}
	v.contents.withdrawn = gone
	shown := maps.Clone(v.contents.shown)
	for ref := range gone {
		shown[ref] = volume.Version{}
		delete(v.contents.named, ref)
	}
	before := v.contents.shown
	v.contents.shown = shown
	v.condition.withdraw(gone)
	if result.Changed {
		v.logUpdate(ctx, before)
	}
	size, err := v.contents.writer.Size(ctx, mnt.Root())
	if err != nil {
		return fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, err)
	}
	v.setTree(memoryOf(size.Bytes, size.Inodes+v.contents.overhead))
	return v.settleSize(ctx, mnt)
}

// mayBeUnnamed says whether files that name no object may be those of one of refused.
func (c *contents) mayBeUnnamed(refused map[volume.Ref]bool) bool {
	for ref := range refused {
		if c.unnamed[ref] {
			return true
		}
	}
	return false
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
