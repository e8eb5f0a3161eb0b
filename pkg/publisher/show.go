package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// show makes the files show the answers. Cheap steps come first, and nothing is written before all of them have succeeded. A refusal is
// always part of the result. What is not known holds up only its own files.
func (v *vol) show(ctx context.Context, got *binding.Answers, before staged, done *result) failure.List {
	missing := got.Unknown
	if !v.isMounted {
		if found := got.First(); len(found) > 0 {
			return found
		}
	}
	if len(missing) > 0 && got.IsFailing && missing.IsSilent() && (v.report.condition != "" || len(got.UnknownRefs) < len(v.binding.Spec().Refs)) {
		missing = failure.List{failure.UnknownObjects(missing)} // a volume of which nothing is known after a restart is Unknown
	}
	if older := v.files.newerThan(got.Record()); len(older) > 0 {
		f := failure.Outdated(0, fmt.Errorf("stale answer: the API server's answer for %s is older than what the files show", older[0]))
		return failure.List{f}.With(missing...).With(got.Refusal)
	}
	next, f := v.stage(ctx, got, before)
	if f == nil && next != nil && !v.isCurrent(next) {
		f = v.update(ctx, next, done)
	}
	return failure.List(nil).With(f, got.Refusal).With(got.Stale...).With(missing...)
}

// update writes what the files should show, if there is room.
func (v *vol) update(ctx context.Context, got *binding.Answers, done *result) *failure.Failure {
	next, f := v.render(ctx, got)
	if f != nil {
		return f
	}
	if f := v.reserve(ctx, next.Payload, done); f != nil {
		v.opts.Observer.RecordWrite(false, 0, f)
		return f
	}
	if !v.isMounted {
		return v.create(ctx, next, got)
	}
	return v.failed(v.rewrite(ctx, next, got))
}

// reserve returns nil if the volume, the pod and the node have room for a tree. Updates that don't grow the files are always accepted, also
// after a limit was lowered. If there is no room, old files of the pod's own volumes are removed, never those of other pods.
func (v *vol) reserve(ctx context.Context, tree *volume.Payload, done *result) *failure.Failure {
	size := writer.Measure(tree)
	if v.isMounted && room.MemoryOf(size.Bytes, size.Inodes) <= v.room.Needed() {
		return nil
	}
	if err := v.limits.CheckTree(size.Bytes, size.Inodes); err != nil {
		return failure.Final(failure.ReasonTooLarge, err)
	}
	takes := room.MemoryOf(size.Bytes, size.Inodes+overhead(tree.Record))
	if v.room.CheckMemory(takes) == nil {
		return nil
	}
	v.host.makeRoom(ctx)
	if err := v.room.CheckMemory(takes); err != nil {
		done.isFull = true
		return failure.Broken(failure.ReasonNodeFull, err)
	}
	return nil
}

// makeRoom removes what the volume keeps for its readers, and measures what it holds.
func (v *vol) makeRoom(ctx context.Context) {
	if !v.isMounted || !v.isSeen || !v.files.generations.isAnyLeft() && !v.room.HoldsOld() {
		return
	}
	if err := v.prune(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Can't make room")
	}
}

// prune removes all superseded generations.
func (v *vol) prune(ctx context.Context) (err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return err
	}
	defer v.files.giveBack(mnt, &err)
	return v.files.pruneAll(mnt, v.receipts.Removing)
}

// rewrite makes the files of a mounted volume show a rendering.
func (v *vol) rewrite(ctx context.Context, next *payload.Rendering, got *binding.Answers) (err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return err
	}
	defer v.files.giveBack(mnt, &err)
	before := v.files.Shown
	hasChanged, f := v.write(ctx, mnt, next, got)
	if hasChanged {
		v.logUpdate(ctx, before)
	}
	if f != nil {
		return f
	}
	return nil
}

// create creates a volume and makes it visible when it is complete.
func (v *vol) create(ctx context.Context, next *payload.Rendering, got *binding.Answers) (f *failure.Failure) {
	if v.opts.NotShared != nil {
		if err := v.opts.NotShared(); err != nil {
			return failure.Unavailable("%w", err)
		}
	}
	mnt, err := v.opts.Mounts.Create(ctx, mount.Params{
		VolumeID: v.ID,
		Size:     v.limits.MountBytes,
		Inodes:   v.limits.MountInodes,
		Mode:     next.Payload.DirMode,
		UID:      next.Payload.UID,
		GID:      next.Payload.GID,
	})
	if err != nil {
		return failure.Broken(0, fmt.Errorf("make the file system of volume %s: %w", v.ID, err))
	}
	defer func() { // also after a panic
		if !v.isMounted {
			v.receipts.Close()
			v.files.reset()
			v.room.Hold(0)
			v.report.Record, v.report.revisions, v.report.opened = record.Record{}, nil, nil
		}
		if err := mnt.Close(); err != nil && f == nil {
			f = failure.Broken(0, err)
		}
	}()
	if err := record.SetPod(mnt.Root(), v.opts.AttributePrefix, v.binding.Request().Pod); err != nil {
		return failure.Broken(0, fmt.Errorf("name the pod of volume %s: %w", v.ID, err))
	}
	if _, f := v.write(ctx, mnt, next, got); f != nil {
		return f
	}
	return v.attach(ctx, mnt)
}

// attach makes a volume visible. Until it starts, the publish may give up or an unpublish may come first.
func (v *vol) attach(ctx context.Context, mnt Mount) (f *failure.Failure) {
	if !v.host.mayAttach() {
		return failure.Waiting(errNobody)
	}
	if err := mnt.Attach(ctx, v.Target); err != nil {
		f = failure.Broken(0, fmt.Errorf("show volume %s at %s: %w", v.ID, v.Target, err))
		v.isSeen = false
		if undo := v.opts.Mounts.Unmount(context.WithoutCancel(ctx), v.ID, v.Target); undo != nil {
			// It may be mounted: a final error would make the kubelet believe that it is not.
			f = failure.Unavailable("%w; undo: %w", f.Err, undo)
		}
		return f
	}
	v.isMounted = true
	if v.binding.Spec().Pinned() {
		v.leave()
	} else {
		v.binding.KeepObjects()
	}
	v.binding.RefreshAnew()
	v.tell()
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		logger.Info("Published volume", "refs", describe(v.binding.Spec().Refs, v.files.Shown), "took", time.Since(v.binding.Request().Came))
	}
	return nil
}

// write makes a file system show a rendering, with a record of the versions. After a failure the files are as they were, or they are
// current and some link is not. The next write repairs that. hasChanged means that files were changed.
func (v *vol) write(ctx context.Context, mnt Mount, next *payload.Rendering, got *binding.Answers) (hasChanged bool, f *failure.Failure) {
	v.tell() // an object whose files were withdrawn may be shown again from here on
	v.receipts.BeforeWrite(ctx, mnt.Root())
	result, err := v.files.write(ctx, mnt, next.Payload, got.Record(), got.Refused, v.isMounted)
	v.afterWrite(ctx, mnt, result, next.Payload, err)
	if err != nil {
		return result.Changed, failure.Broken(0, errors.Join(fmt.Errorf("write the files of volume %s: %w", v.ID, err), v.files.measure(mnt)))
	}
	v.report.shows(got.Record(), got.Objects)
	if result.Changed && !v.changedAt.IsZero() {
		v.opts.Observer.Propagated(time.Since(v.changedAt))
	}
	if result.Changed {
		v.changedAt = time.Time{}
	}
	if f := v.settle(mnt); f != nil {
		return result.Changed, f
	}
	skipped := skippedText(next.Skipped, v.binding.Spec().LeftOut)
	if v.report.isSkippedNews(skipped) {
		v.opts.Events.Warn(v.binding.Request().Pod, eventInvalidNames, skipped)
	}
	return result.Changed, nil
}

// afterWrite updates the receipts after a write. A nil tree means that the files are read.
func (v *vol) afterWrite(ctx context.Context, mnt Mount, result writer.Result, tree *volume.Payload, err error) {
	if result.Changed {
		v.receipts.AfterWrite(ctx, mnt.Root(), result.Generation, tree, v.isMounted)
		v.reportOpened(ctx, false)
	}
	v.opts.Observer.RecordWrite(result.Changed, result.Bytes, err)
}

// settle measures what a volume holds after a write. If the pod or the node now holds too much, because others have grown meanwhile, a new
// volume is not mounted, and a mounted one removes what it keeps for readers.
func (v *vol) settle(mnt Mount) *failure.Failure {
	if err := v.files.measure(mnt); err != nil {
		return failure.Broken(0, err)
	}
	err := v.room.CheckMemory(v.room.Held())
	switch {
	case err == nil:
		return nil
	case !v.isMounted:
		return failure.Broken(failure.ReasonNodeFull, err)
	}
	return v.failed(v.files.pruneAll(mnt, v.receipts.Removing))
}

// withdraw removes the files of refused objects. It needs only the volume: the files themselves name their objects. The other files stay as
// they were. An env file is removed as a whole, until an update succeeds.
func (v *vol) withdraw(ctx context.Context, refused map[volume.Ref]bool) (err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return err
	}
	defer v.files.giveBack(mnt, &err)
	before := v.files.Shown
	v.receipts.BeforeWrite(ctx, mnt.Root())
	result, err := v.files.withdraw(ctx, mnt, refused, v.isMounted)
	v.afterWrite(ctx, mnt, result, nil, err)
	if err != nil {
		return fmt.Errorf("withdraw files of volume %s: %w", v.ID, err)
	}
	v.report.Record = v.report.Without(refused)
	if result.Changed {
		v.logUpdate(ctx, before)
	}
	return v.files.measure(mnt)
}

// logUpdate logs that files of a mounted volume have changed, and why.
func (v *vol) logUpdate(ctx context.Context, before record.Versions) {
	if logger := klog.FromContext(ctx).V(2); logger.Enabled() {
		refs := v.binding.Spec().Refs
		logger.Info("Updated volume", "refs", describe(refs, v.files.Shown), "reason", v.files.whatChanged(refs, before))
	}
}

// whatChanged returns one line that says which objects differ between the files and an earlier state.
func (f *files) whatChanged(refs []volume.Ref, before record.Versions) string {
	now := f.Shown
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
