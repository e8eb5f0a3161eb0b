package publisher

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
)

// The node's total counts what the kernel holds: the file system of each volume says so. That is more than
// its newest tree while earlier generations are kept, and while readers have old files open.

// measure counts what a volume's file system holds. The caller holds the lock of the contents.
func (v *published) measure(mnt Mount) error {
	usage, err := mnt.Usage()
	if err != nil {
		return fmt.Errorf("measure volume %s: %w", v.request.VolumeID, err)
	}
	v.setUsage(usage)
	return nil
}

func (v *published) setUsage(usage mount.Usage) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.count(memoryOf(usage.Used, usage.InodesUsed))
}

// setTree notes what the volume's newest tree takes of the node's total.
func (v *published) setTree(takes int64) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.tree = takes
}

// settleSize measures a volume after its files have changed. What is kept for readers goes if the node
// has no room for it. The caller holds the lock of the contents.
func (v *published) settleSize(ctx context.Context, mnt Mount) error {
	if err := v.measure(mnt); err != nil {
		return err
	}
	v.free(ctx, mnt, func() bool {
		v.p.mu.Lock()
		defer v.p.mu.Unlock()
		return v.p.used <= v.p.opts.MaxTotalSize
	})
	return v.noteFiles(ctx, mnt)
}

// noteFiles notes what the names in the volume take: what its file system holds beyond that, readers
// hold.
func (v *published) noteFiles(ctx context.Context, mnt Mount) error {
	files := int64(0)
	if !v.contents.writer.Stale() {
		size, err := v.contents.writer.Size(ctx, mnt.Root())
		if err != nil {
			return fmt.Errorf("measure the files of volume %s: %w", v.request.VolumeID, err)
		}
		files = memoryOf(size.Bytes, size.Inodes+v.contents.overhead)
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.files = files
	return nil
}

// held is how much of the volume's size readers hold in files that have no name any more. The
// caller holds Publisher.mu.
func (v *published) held() int64 {
	if v.files == 0 {
		return 0
	}
	return max(0, v.size-v.files)
}

// remeasure measures a volume again of whose old files readers held some. The caller holds the lock of the
// contents.
func (v *published) remeasure(ctx context.Context) {
	v.p.mu.Lock()
	held := v.held()
	v.p.mu.Unlock()
	if held == 0 {
		return
	}
	// What can't be measured counts as it did.
	if usage, err := v.p.opts.Mounts.Usage(ctx, v.request.VolumeID, v.request.Target); err == nil {
		v.setUsage(usage)
	}
}

// free removes what a volume keeps for readers alone, the oldest first, until there is enough room. The
// caller holds the lock of the contents.
func (v *published) free(ctx context.Context, mnt Mount, enough func() bool) {
	for !enough() {
		dropped, err := v.contents.writer.DropOldest(ctx, mnt.Root())
		if err == nil && dropped {
			err = v.measure(mnt)
		}
		if err != nil {
			v.contents.leftover = fmt.Errorf("prune volume %s: %w", v.request.VolumeID, err)
		}
		if err != nil || !dropped {
			return
		}
	}
}

// reclaimTime bounds how long an update waits for what other volumes give up. It must not look as if
// it hung itself.
const reclaimTime = hangTime / 2

// reclaim has the volumes that hold more than their newest tree, but one, measured again, and has them give up
// what they keep for readers alone until there is enough room. To remove something may hang, so
// it returns after reclaimTime at the latest, and while another call is at it, at once.
func (p *Publisher) reclaim(ctx context.Context, asking *published, enough func() bool) {
	p.mu.Lock()
	busy := p.reclaiming
	p.reclaiming = true
	var holding []*published
	for _, v := range p.volumes {
		if v != asking && v.live && v.excess() > 0 {
			holding = append(holding, v)
		}
	}
	left := make([]mount.Mounted, 0, len(p.restored))
	for _, r := range p.restored {
		left = append(left, r.Mounted)
	}
	p.mu.Unlock()
	if busy {
		return
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reclaimTime)
	go func() {
		defer close(ended)
		defer cancel()
		defer func() {
			if cause := recover(); cause != nil {
				logPanic(ctx, cause)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.reclaiming = false
		}()
		for i := range left {
			if usage, err := p.opts.Mounts.Usage(ctx, left[i].VolumeID, left[i].Target); err == nil {
				p.noteSize(left[i], memoryOf(usage.Used, usage.InodesUsed))
			}
		}
		for _, v := range holding {
			v.giveUp(ctx, enough)
		}
	}()
	select {
	case <-ended:
	case <-time.After(reclaimTime):
	}
}

// noteSize notes what a restored volume holds, if it is still one that is counted.
func (p *Publisher) noteSize(m mount.Mounted, size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.restored[m.VolumeID]; r != nil && r.Mounted == m && r.size > 0 {
		p.used += size - r.size
		r.size = size
	}
}

// giveUp is reclaim for one volume. One that is being written measures itself.
func (v *published) giveUp(ctx context.Context, enough func() bool) {
	if !v.contents.mu.TryLock() {
		return
	}
	defer v.contents.mu.Unlock()
	if v.contents.gone {
		return
	}
	usage, err := v.p.opts.Mounts.Usage(ctx, v.request.VolumeID, v.request.Target)
	if err != nil {
		return // its next update tells
	}
	v.setUsage(usage)
	if enough() {
		return
	}
	if err := v.reopen(ctx, func(mnt Mount) error { v.free(ctx, mnt, enough); return nil }); err != nil {
		klog.FromContext(ctx).V(2).Info("Can't free what a volume keeps for readers", "volumeID", v.request.VolumeID, "err", err)
	}
	if v.contents.leftover != nil {
		v.p.queue.Add(v.request.VolumeID) // which tries it again, and tells
	}
}
