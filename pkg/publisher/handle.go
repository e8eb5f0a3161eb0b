package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// maxKeptHandles returns how many volumes may keep their handle, which is two descriptors
// each: never more than a quarter of those that the process may have.
func maxKeptHandles() int64 {
	const most = 1024
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int64(min(most, limit.Cur/8))
}

// keepTime after the last switch of a volume its handle is given back: a volume that has
// just changed is the likeliest to change again.
const keepTime = 30 * time.Second

// handle is a writable handle on the mount of a live volume, which is kept for a while after
// a write: to open one costs as much as a small write, and to give one back has the kernel
// wait for all processors. The lock of the pod guards it.
type handle struct {
	// mount is nil while none is kept.
	mount Mount
}

// reopen calls write with a handle on the volume's mount. A volume that is no longer
// mounted is dropped, and nothing is written. Its author is told if something is mounted there that
// is not proven to be the volume, as when its attribute was spoilt. The caller holds the lock of the
// contents.
func (v *published) reopen(ctx context.Context, write func(Mount) error) (err error) {
	mnt, err := v.take(ctx)
	if errors.Is(err, mount.ErrNotMounted) {
		if errors.Is(err, mount.ErrForeign) { // first, for an unpublish may come right after the drop
			v.p.leave(ctx, &v.request, fmt.Errorf("open volume %s at %s: %w", v.request.VolumeID, v.request.Target, err))
		}
		v.dropLocked(ctx)
		return nil
	}
	if err != nil {
		return fmt.Errorf("open volume %s at %s: %w", v.request.VolumeID, v.request.Target, err)
	}
	written := false
	defer func() { // also when the write panics
		if !written || err != nil || !v.keep(mnt) {
			err = errors.Join(err, mnt.Close())
		}
	}()
	err = write(mnt)
	written = true
	return err
}

// take returns a handle on the volume's mount: the one that was kept, if what is mounted at
// the target is still the volume, or a new one.
func (v *published) take(ctx context.Context) (Mount, error) {
	kept := v.contents.handle.mount
	if kept == nil {
		return v.open(ctx)
	}
	if kept.StillAt(ctx, v.request.Target) {
		v.contents.handle.mount = nil
		v.p.kept.Add(-1)
		return kept, nil
	}
	if err := v.giveBack(); err != nil {
		return nil, err
	}
	return v.open(ctx)
}

// open returns a new handle on the volume's mount, which then has room for what a volume may
// hold by now: it may have been made when that was less. Without the room an update may still
// fit, so it goes on.
func (v *published) open(ctx context.Context) (Mount, error) {
	mnt, err := v.p.opts.Mounts.Reopen(ctx, v.request.VolumeID, v.request.Target)
	if err != nil {
		return nil, err
	}
	if err := mnt.Grow(ctx, v.p.limits.mountBytes, v.p.limits.mountInodes); err != nil {
		// Once is enough: the reason is the node's, such as a missing capability.
		v.p.growthRefused.Do(func() {
			klog.FromContext(ctx).Error(err, "Can't enlarge the file system of a mounted volume: it keeps the limit that it was published with, and so may others")
		})
	}
	return mnt, nil
}

// keep keeps a handle for the next write, unless the volume doesn't change, or there are
// many.
func (v *published) keep(mnt Mount) bool {
	if time.Since(v.contents.switched) >= keepTime {
		return false
	}
	if v.p.kept.Add(1) > v.p.maxKept {
		v.p.kept.Add(-1)
		return false
	}
	v.contents.handle.mount = mnt
	return true
}

// giveBackIdle gives the handle back once the volume has not changed for a while, and sees
// to it that this is looked at then.
func (v *published) giveBackIdle() error {
	if v.contents.handle.mount == nil || v.putOff(keepTime) {
		return nil
	}
	return v.giveBack()
}

// giveBack closes the handle that is kept, if there is one. The caller holds the lock of the
// contents.
func (v *published) giveBack() error {
	kept := v.contents.handle.mount
	if kept == nil {
		return nil
	}
	v.contents.handle.mount = nil
	v.p.kept.Add(-1)
	return kept.Close()
}

// giveBackAll closes all handles that are kept.
func (p *Publisher) giveBackAll() error {
	p.mu.Lock()
	all := make([]*published, 0, len(p.volumes))
	for _, v := range p.volumes {
		if v.known() {
			all = append(all, v)
		}
	}
	p.mu.Unlock()
	var errs []error
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nobody waits: a reconcile may hang
	for _, v := range all {
		if v.worker.lock(ctx) == nil {
			errs = append(errs, v.giveBack())
			v.worker.unlock()
		}
	}
	return errors.Join(errs...)
}
