package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// show makes the files show the answers. Cheap steps come first, and nothing is written before all of them have succeeded. A refusal is
// always part of the result. What is not known holds up only its own files.
func (v *vol) show(ctx context.Context, got *answers, before staged) *failure {
	refusal, unknown := v.binding.rights.refusal(got.refused), got.unknown
	if !v.entry.isMounted() {
		if f := got.first(refusal); f != nil {
			return f
		}
	}
	if unknown != nil && got.isFailing && unknown.silent && (v.entry.report.condition != "" || len(got.unknownRefs) < len(v.binding.spec.refs)) {
		unknown = unknownObjects(unknown) // a volume of which nothing is known after a restart is Unknown
	}
	if ref, isOlder := v.files.isOlder(got.at); isOlder {
		return also(also(stale(fmt.Errorf("the API server's answer for %s is older than what the files show", ref)), unknown), refusal)
	}
	got, f := v.stage(ctx, got, before)
	if f != nil || got == nil {
		return also(also(unknown, f), refusal)
	}
	if !v.files.isCurrent(got) {
		f = v.update(ctx, got)
	}
	if f != nil {
		return also(also(f, unknown), refusal)
	}
	return also(also(refusal, got.stale), unknown)
}

// update writes what the files should show, if there is room.
func (v *vol) update(ctx context.Context, got *answers) *failure {
	next, f := v.render(ctx, got)
	if f != nil {
		return f
	}
	if f := v.reserve(ctx, next.Payload); f != nil {
		v.shared.opts.Observer.RecordWrite(false, 0, f)
		return f
	}
	return v.write(ctx, next, got)
}

// reserve returns nil if the volume, the pod and the node have room for a tree. Updates that don't grow the files are always accepted, also
// after a limit was lowered. If there is no room, old files of the pod's own volumes are removed, never those of other pods.
func (v *vol) reserve(ctx context.Context, tree *volume.Payload) *failure {
	size := writer.Measure(tree)
	if v.entry.isMounted() && room.MemoryOf(size.Bytes, size.Inodes) <= v.entry.room.Needed() {
		return nil
	}
	if err := v.shared.limits.CheckTree(size.Bytes, size.Inodes); err != nil {
		return final(ReasonTooLarge, "%w", err)
	}
	takes := room.MemoryOf(size.Bytes, size.Inodes+overhead(tree.Record))
	if v.entry.fits(takes) == nil {
		return nil
	}
	for _, e := range v.entry.siblings() {
		e.vol.makeRoom(ctx)
	}
	f := v.entry.fits(takes)
	if f != nil {
		v.entry.table.measureAll()
	}
	return f
}

// makeRoom removes what a volume keeps for its readers, and measures what it holds.
func (v *vol) makeRoom(ctx context.Context) {
	if !v.entry.isMounted() || !v.seen || !v.files.generations.isAnyLeft() && !v.entry.room.HoldsOld() {
		return
	}
	err := v.files.through(ctx, func(mnt Mount) error { return v.files.pruneAll(mnt, v.receipts.Removing) })
	if err != nil {
		klog.FromContext(ctx).Error(err, "Can't make room")
	}
}

// write makes the files show a rendering, in the existing mount or in a new one.
func (v *vol) write(ctx context.Context, next *payload.Rendering, got *answers) *failure {
	if !v.entry.isMounted() {
		return v.create(ctx, next, got)
	}
	before := v.files.shown
	var f *failure
	err := v.files.through(ctx, func(mnt Mount) error {
		var hasChanged bool
		if hasChanged, f = v.writeFiles(ctx, mnt, next, got); hasChanged {
			v.logUpdate(ctx, before)
		}
		if f != nil {
			return f
		}
		return nil
	})
	if err != nil && f == nil {
		f = v.filesFailed(err)
	}
	return f
}

// create creates a volume and makes it visible when it is complete.
func (v *vol) create(ctx context.Context, next *payload.Rendering, got *answers) (f *failure) {
	if v.shared.opts.NotShared != nil {
		if err := v.shared.opts.NotShared(); err != nil {
			return unavailable("%w", err)
		}
	}
	mnt, err := v.shared.opts.Mounts.Create(ctx, mount.Params{
		VolumeID: v.entry.id,
		Size:     v.shared.limits.MountBytes,
		Inodes:   v.shared.limits.MountInodes,
		Mode:     next.Payload.DirMode,
		UID:      next.Payload.UID,
		GID:      next.Payload.GID,
	})
	if err != nil {
		return broken(fmt.Errorf("make the file system of volume %s: %w", v.entry.id, err))
	}
	defer func() { // also after a panic
		if !v.entry.isMounted() {
			v.receipts.Close()
			v.files.reset()
			v.entry.room.Hold(0)
			v.entry.set(func() { v.entry.report.shown, v.entry.report.opened = nil, nil })
		}
		if err := mnt.Close(); err != nil {
			f = also(f, broken(err))
		}
	}()
	if err := record.SetPod(mnt.Root(), v.shared.opts.AttributePrefix, v.binding.request.Pod); err != nil {
		return broken(fmt.Errorf("name the pod of volume %s: %w", v.entry.id, err))
	}
	if _, f := v.writeFiles(ctx, mnt, next, got); f != nil {
		return f
	}
	return v.attach(ctx, mnt)
}

// attach makes a volume visible. Until it starts, the publish may give up or an unpublish may come first.
func (v *vol) attach(ctx context.Context, mnt Mount) (f *failure) {
	e := v.entry
	e.table.mu.Lock()
	if e.wanted.going || !e.wanted.waits {
		e.table.mu.Unlock()
		return waiting(errNobody)
	}
	e.phase = attaching
	e.table.mu.Unlock()
	if err := mnt.Attach(ctx, e.target); err != nil {
		f = broken(fmt.Errorf("show volume %s at %s: %w", e.id, e.target, err))
		v.seen = false
		if undo := v.shared.opts.Mounts.Unmount(context.WithoutCancel(ctx), e.id, e.target); undo != nil {
			// It may be mounted: a final error would make the kubelet believe that it is not.
			f = unavailable("%w; undo: %w", f.err, undo)
		}
		e.set(func() { e.phase = absent })
		return f
	}
	if v.binding.spec.Pinned() { // the files are never written again
		v.binding.release()
	} else {
		v.binding.keepObjects()
	}
	v.binding.refreshAnew()
	e.set(func() { e.phase = mounted })
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Published volume", "refs", describe(v.binding.spec.refs, v.files.shown), "took", time.Since(v.binding.request.came))
	}
	return nil
}

// writeFiles makes a file system show a rendering, with a record of the versions. After a failure the files are as they were, or they are
// current and some link is not. The next write repairs that. hasChanged means that files were changed.
func (v *vol) writeFiles(ctx context.Context, mnt Mount, next *payload.Rendering, got *answers) (hasChanged bool, f *failure) {
	v.receipts.BeforeWrite(ctx, mnt.Root())
	result, err := v.files.write(ctx, mnt, next.Payload, got)
	v.afterWrite(ctx, mnt, result, next.Payload)
	v.shared.opts.Observer.RecordWrite(result.Changed, result.Bytes, err)
	if err != nil {
		return result.Changed, broken(errors.Join(fmt.Errorf("write the files of volume %s: %w", v.entry.id, err), v.files.measure(mnt)))
	}
	v.entry.set(func() { v.entry.report.shown = got.at })
	if result.Changed && !v.changedAt.IsZero() {
		v.shared.opts.Observer.Propagated(time.Since(v.changedAt))
	}
	if result.Changed {
		v.changedAt = time.Time{}
	}
	if f := v.settle(mnt); f != nil {
		return result.Changed, f
	}
	if skipped := skippedText(next.Skipped, v.binding.spec.leftOut); skipped != v.files.skipped {
		if v.files.skipped = skipped; skipped != "" {
			v.shared.opts.Events.Warn(v.binding.request.Pod, eventInvalidNames, skipped)
		}
	}
	return result.Changed, nil
}

// afterWrite updates the receipts after a write. A nil tree means that the files are read.
func (v *vol) afterWrite(ctx context.Context, mnt Mount, result writer.Result, tree *volume.Payload) {
	if result.Changed {
		v.receipts.AfterWrite(ctx, mnt.Root(), result.Generation, tree, v.entry.isMounted())
		v.reportOpened(ctx, false)
	}
}

// settle measures what a volume holds after a write. If the pod or the node now holds too much, because others have grown meanwhile, a new
// volume is not mounted, and a mounted one removes what it keeps for readers.
func (v *vol) settle(mnt Mount) *failure {
	if err := v.files.measure(mnt); err != nil {
		return broken(err)
	}
	f := v.entry.fits(v.entry.room.Held())
	if f == nil || !v.entry.isMounted() {
		return f
	}
	if err := v.files.pruneAll(mnt, v.receipts.Removing); err != nil {
		return broken(err)
	}
	return nil
}

// withdraw removes the files of refused objects. It needs only the volume: the files themselves name their objects. The other files stay as
// they were. An env file is removed as a whole, until an update succeeds.
func (v *vol) withdraw(ctx context.Context, refused map[volume.Ref]bool) *failure {
	err := v.files.through(ctx, func(mnt Mount) error {
		before := v.files.shown
		v.receipts.BeforeWrite(ctx, mnt.Root())
		result, err := v.files.withdraw(ctx, mnt, refused)
		v.shared.opts.Observer.RecordWrite(result.Changed, result.Bytes, err)
		v.afterWrite(ctx, mnt, result, nil)
		if err != nil {
			return fmt.Errorf("withdraw files of volume %s: %w", v.entry.id, err)
		}
		v.entry.set(func() { v.entry.report.withdraw(maps.Clone(refused)) })
		if result.Changed {
			v.logUpdate(ctx, before)
		}
		return v.files.measure(mnt)
	})
	if err != nil {
		return v.filesFailed(err)
	}
	return nil
}

// logUpdate logs that files of a mounted volume have changed, and why.
func (v *vol) logUpdate(ctx context.Context, before record.Versions) {
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		refs := v.binding.spec.refs
		logger.Info("Updated volume", "refs", describe(refs, v.files.shown), "reason", v.files.whatChanged(refs, before))
	}
}

// whatChanged returns one line that says which objects differ between the files and an earlier state.
func (f *files) whatChanged(refs []volume.Ref, before record.Versions) string {
	now := f.shown
	changed := slices.DeleteFunc(slices.Clone(refs), func(ref volume.Ref) bool { return before[ref] == now[ref] })
	if len(changed) == 0 {
		return "the files differed from what they should show"
	}
	return enumerate(changed, func(ref volume.Ref) string {
		was, is := before[ref], now[ref]
		switch {
		case is.UID == "" && f.withdrawn[ref]:
			return "is refused to the pod, or may share a file with a refused object: its files were removed"
		case is.UID == "":
			return "was deleted, its files were removed"
		case was.UID == "":
			return "was not shown before"
		case was.UID != is.UID:
			return "was deleted and created again"
		}
		return "changed, it was at " + was.ResourceVersion
	})
}
