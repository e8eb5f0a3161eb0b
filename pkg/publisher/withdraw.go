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
// an env file goes as a whole, until an update can be made. The caller holds the lock of the
// contents.
func (p *Publisher) withdraw(ctx context.Context, v *published) error {
	if p.putOff(v, readTime) {
		return nil
	}
	return p.reopen(ctx, v, func(mnt Mount) error { return p.withdrawThrough(ctx, v, mnt) })
}

// withdrawThrough is withdraw through a handle on the volume's mount.
func (p *Publisher) withdrawThrough(ctx context.Context, v *published, mnt Mount) error {
	refused := v.contents.access.refused
	v.contents.proven = false
	result, err := v.contents.writer.Withdraw(ctx, mnt.Root(), refused)
	if result.Changed && v.contents.writer.Stale() {
		v.contents.switched = time.Now()
	}
	if err != nil {
		return fmt.Errorf("withdraw files of volume %s: %w", v.request.VolumeID, err)
	}
	v.contents.withdrawn = refused
	v.contents.shown = maps.Clone(v.contents.shown)
	for ref := range refused {
		v.contents.shown[ref] = volume.Version{}
	}
	size, err := v.contents.writer.Size(ctx, mnt.Root())
	if err != nil {
		return fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(v, size.Bytes)
	return nil
}

// showsRefused says whether files of a refused object are, or may be, there.
func (c *contents) showsRefused() bool {
	for ref := range c.access.refused {
		if !c.withdrawn[ref] {
			return true
		}
	}
	return false
}

// shows returns which of refs the files of a volume show: all of them if that can't be told,
// which the next write then meets too. The caller holds the lock of the contents.
func (p *Publisher) shows(ctx context.Context, v *published, refs map[volume.Ref]bool) map[volume.Ref]bool {
	if len(refs) == 0 {
		return nil
	}
	var shown map[volume.Ref]bool
	err := p.reopen(ctx, v, func(mnt Mount) (err error) {
		shown, err = v.contents.writer.Shows(ctx, mnt.Root(), refs)
		return err
	})
	if err != nil {
		return refs
	}
	return shown
}
