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

// measure counts what a volume's file system holds. The caller holds the lock of the pod.
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
	v.charge(memoryOf(usage.Used, usage.InodesUsed), 0)
}

// setTree notes what the volume's newest tree takes of the node's total.
func (v *published) setTree(takes int64) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.tree = takes
}

// settleSize measures a volume after its files have changed. What is kept for readers goes if the node
// has no room for it. The caller holds the lock of the pod.
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
// caller holds the lock of the pod.
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

// reclaimTime bounds how long an update waits for what other volumes give up.
const reclaimTime = 500 * time.Millisecond

// reclaim has the volumes that hold more than their newest tree, but one, measured again, and has them give
// up what they keep for readers alone, until there is enough room. Volumes of other pods do so in their own
// turn. The caller holds the lock of the pod of the volume that asks.
func (p *Publisher) reclaim(ctx context.Context, asking *published, enough func() bool) {
	ctx, cancel := context.WithTimeout(ctx, reclaimTime)
	defer cancel()
	siblings := p.ask(asking)
	for _, v := range siblings {
		v.giveUp(ctx, enough)
	}
	for {
		freed, more := p.awaitFreed()
		if !more || enough() {
			break
		}
		select {
		case <-freed:
			continue
		case <-ctx.Done():
		}
		break
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.asked)
}

// ask has the volumes of other pods that hold more than their newest tree give that up, and returns those of the
// same pod.
func (p *Publisher) ask(asking *published) (siblings []*published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, v := range p.volumes {
		switch {
		case v == asking || v.state != live || v.excess() == 0:
		case v.worker == asking.worker:
			siblings = append(siblings, v)
		case v.follows():
			p.asked[v] = true
			p.requeueLocked(v, now)
		}
	}
	return siblings
}

// awaitFreed returns a channel that is closed when a volume has given up something, and whether one still may.
func (p *Publisher) awaitFreed() (freed <-chan struct{}, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.freed, len(p.asked) > 0
}

// tellFreed tells those who wait for memory. The caller holds mu.
func (p *Publisher) tellFreed() {
	if len(p.asked) > 0 {
		close(p.freed)
		p.freed = make(chan struct{})
	}
}

// answer ends what a volume was asked. The caller holds mu.
func (p *Publisher) answer(v *published) {
	if p.asked[v] {
		p.tellFreed()
		delete(p.asked, v)
	}
}

// giveUpIfAsked is giveUp for a volume that was asked, as long as the one that asks lacks room.
func (v *published) giveUpIfAsked(ctx context.Context) {
	asked := func() bool {
		v.p.mu.Lock()
		defer v.p.mu.Unlock()
		return v.p.asked[v]
	}
	if asked() {
		v.giveUp(ctx, func() bool { return !asked() })
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.p.answer(v)
}

// giveUp measures a volume, and removes what it keeps for readers alone, until there is enough room. The
// caller holds the lock of the pod.
func (v *published) giveUp(ctx context.Context, enough func() bool) {
	if v.is(gone) {
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
		v.p.requeue(v, time.Now()) // which tries it again, and tells
	}
}
