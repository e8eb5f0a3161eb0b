package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// show makes the files show the answers. The order of the steps is that of their cost, and nothing is written before all of
// them are known.
func (v *vol) show(ctx context.Context, got *answers) error {
	if !v.mounted {
		if err := v.first(got); err != nil {
			return err
		}
	}
	if got.unknown != nil {
		return also(got.unknown, v.refusal(got.refused))
	}
	if v.isCurrent(got) {
		v.contents.spreadAt = time.Time{}
		return also(v.refusal(got.refused), got.stale)
	}
	if ref, older := v.older(got); older {
		return fmt.Errorf("%w: the API server's answer for %s is older than what the files show", errStale, ref)
	}
	next, err := v.render(ctx, got)
	if err != nil {
		return also(err, v.refusal(got.refused))
	}
	if err := v.spread(ctx, next, got); err != nil {
		return also(err, v.refusal(got.refused))
	}
	if err := v.reserve(ctx, next.Payload); err != nil {
		v.p.opts.Observer.RecordWrite(false, 0, err)
		return also(err, v.refusal(got.refused))
	}
	if err := v.write(ctx, next, got); err != nil {
		return also(err, v.refusal(got.refused))
	}
	return also(v.refusal(got.refused), got.stale)
}

// first returns why a new volume may not begin with answers, nil if it may.
func (v *vol) first(got *answers) error {
	var denied *deniedError
	var full *manager.FullError
	switch {
	case len(got.refused) > 0: // since the pod was admitted
		return v.refusal(got.refused)
	case errors.As(got.unknown, &full):
		return fail(ReasonCacheFull, "%w", full) // what else is unknown changes nothing
	case got.unknown != nil:
		return got.unknown
	case errors.As(got.stale, &denied):
		// A new volume must not begin with what nobody may read any more.
		return got.stale
	}
	return nil
}

// render returns what the volume is to show. It waits for a place, which bounds the memory; what the pod may not have goes
// before that. While the volume is mounted, its spec says what a deleted object means; before, a required object that does
// not exist was never there.
func (v *vol) render(ctx context.Context, got *answers) (next *payload.Rendering, err error) {
	if v.mounted && v.showsAny(got.refused) && v.p.isCrowded() {
		if err := v.withdraw(ctx, got.refused); err != nil {
			return nil, err
		}
	}
	crowded := v.p.inTurn(ctx, func() {
		next, err = payload.Render(v.spec.resolved, got.objects, payload.Options{
			FSGroup:        v.specOf.FSGroup,
			Refused:        got.refused,
			Pod:            v.specOf.Pod,
			NodeName:       v.p.opts.NodeName,
			MaxFiles:       int(max(v.p.limits.files, v.size/inodeSize)), // what is mounted may go on to hold what it holds
			ForgiveDeleted: v.mounted && v.spec.RemoveDeleted(),
		})
	})
	var missing *payload.MissingError
	var tooLarge *payload.TooLargeError
	switch {
	case crowded != nil:
		return nil, crowded
	case errors.As(err, &tooLarge):
		return nil, fail(ReasonTooLarge, "%w", err)
	case errors.As(err, &missing):
		return nil, err
	case err != nil:
		return nil, fail(ReasonInvalid, "%w", err)
	}
	next.Payload.Record = got.at.Encode()
	return next, nil
}

// write makes the files show a rendering: in the mount that is there, or in one that becomes visible when it is complete.
func (v *vol) write(ctx context.Context, next *payload.Rendering, got *answers) error {
	if v.mounted {
		before := v.contents.shown
		return v.through(ctx, func(mnt Mount) error {
			changed, err := v.writeFiles(ctx, mnt, next, got)
			if changed {
				v.logUpdate(ctx, before)
			}
			if err == nil {
				v.pruneThrough(mnt)
			}
			return err
		})
	}
	return v.create(ctx, next, got)
}

// create makes a volume, and shows it when it is complete.
func (v *vol) create(ctx context.Context, next *payload.Rendering, got *answers) (err error) {
	if v.p.opts.NotShared != nil {
		if err := v.p.opts.NotShared(); err != nil {
			return fail(ReasonUnavailable, "%w", err)
		}
	}
	mnt, err := v.p.opts.Mounts.Create(ctx, mount.Params{
		VolumeID: v.id,
		Size:     v.p.limits.mountBytes,
		Inodes:   v.p.limits.mountInodes,
		Mode:     next.Payload.DirMode,
		UID:      next.Payload.UID,
		GID:      next.Payload.GID,
	})
	if err != nil {
		return fmt.Errorf("make the file system of volume %s: %w", v.id, err)
	}
	defer func() { // also when something panics
		if !v.mounted {
			v.receipts.close()
			v.contents = contents{writer: v.contents.writer}
			v.set(func() { v.charge(0); v.told.shown, v.told.opened = nil, nil })
		}
		err = errors.Join(err, mnt.Close())
	}()
	if err := record.SetPod(mnt.Root(), v.p.opts.AttributePrefix, v.specOf.Pod); err != nil {
		return fmt.Errorf("name the pod of volume %s: %w", v.id, err)
	}
	if _, err := v.writeFiles(ctx, mnt, next, got); err != nil {
		return err
	}
	return v.attach(ctx, mnt)
}

// attach makes a volume visible. Its begin is the point of no return for the publish that waits: until then that may give
// up, or an unpublish may come first.
func (v *vol) attach(ctx context.Context, mnt Mount) error {
	v.p.mu.Lock()
	if v.gone || !v.waits {
		v.p.mu.Unlock()
		return pending(errNobody)
	}
	v.attaching = true
	v.p.mu.Unlock()
	err := mnt.Attach(ctx, v.target)
	if err != nil {
		err = fmt.Errorf("show volume %s at %s: %w", v.id, v.target, err)
		v.seen = false
		if undo := v.p.opts.Mounts.Unmount(context.WithoutCancel(ctx), v.id, v.target); undo != nil {
			// It may be there: the kubelet must not believe that it is not.
			err = fail(ReasonUnavailable, "%w; undo: %w", err, undo)
		}
	}
	switch {
	case err != nil:
	case v.spec.Pinned(): // it is never written again
		v.letGo()
	default:
		v.p.opts.Objects.Keep(v.specOf.Pod, v.id)
	}
	v.askAt = time.Time{}
	v.set(func() { v.attaching, v.mounted = false, err == nil })
	if logger := klog.FromContext(ctx).V(2); err == nil && logger.Enabled() {
		logger.Info("Published volume", "refs", describe(v.spec.refs, v.contents.shown), "took", time.Since(v.specOf.came))
	}
	return err
}

// writeFiles makes a file system show a rendering, with a record of at which versions. On an error the files stay as they
// were, or are current and some link is not; another write mends that. changed says that files were changed.
func (v *vol) writeFiles(ctx context.Context, mnt Mount, next *payload.Rendering, got *answers) (changed bool, err error) {
	var result writer.Result
	defer func() { v.p.opts.Observer.RecordWrite(result.Changed, result.Bytes, err) }()
	v.contents.proven = false
	v.receipts.beforeWrite(ctx, mnt.Root())
	result, err = v.contents.writer.Write(ctx, mnt.Root(), next.Payload)
	v.written(ctx, mnt, result, len(next.Payload.Files))
	if result.Changed {
		v.switchedNow()
	}
	switch {
	case err == nil:
		v.contents.shown, v.contents.withdrawn = got.at, got.refused
		v.set(func() { v.told.shown = got.at })
	case result.Changed:
		// Some files may still be those of before, where they are rewritten in place. So nothing older
		// may follow, and the status goes on to say what was shown by all files.
		v.contents.shown, v.contents.withdrawn = got.at, nil
	}
	if err != nil {
		return result.Changed, errors.Join(fmt.Errorf("write the files of volume %s: %w", v.id, err), v.measure(mnt))
	}
	v.contents.proven, v.contents.spreadAt = true, time.Time{}
	if result.Changed {
		v.showed()
	}
	if err := v.settle(mnt); err != nil {
		return result.Changed, err
	}
	skipped := skippedText(next.Skipped, v.spec.leftOut)
	if skipped != v.contents.skipped && skipped != "" {
		v.p.opts.Events.Warn(v.specOf.Pod, eventInvalidNames, skipped)
	}
	v.contents.skipped = skipped
	return result.Changed, nil
}

// written has receipts look at what a write has left, and reports what they say.
func (v *vol) written(ctx context.Context, mnt Mount, result writer.Result, files int) {
	if result.Changed {
		v.receipts.afterWrite(ctx, mnt.Root(), files, v.mounted)
		v.reportOpened(ctx, false)
	}
}

// reportOpened says anew which objects were opened. saved says that files may have just got their receipts: those that now all
// have one are observed.
func (v *vol) reportOpened(ctx context.Context, saved bool) {
	if v.p.opts.Opens == nil {
		return
	}
	now := v.receipts.states(v.spec.refs)
	for ref, o := range now {
		if was := v.told.opened[ref]; saved && o.State == OpenYes && was != nil && was.State != OpenYes {
			took := o.At.Sub(o.Since)
			v.p.opts.Observer.Opened(took)
			klog.FromContext(ctx).V(2).Info("Object was opened", "ref", ref.String(), "version", v.contents.shown[ref].ResourceVersion, "after", took)
		}
	}
	v.set(func() { v.told.opened = now })
}

// withdraw takes the files of refused objects away. It needs nothing but the volume: the files themselves name the objects.
// The others stay as they were; an env file goes as a whole, until an update can be made.
func (v *vol) withdraw(ctx context.Context, refused map[volume.Ref]bool) error {
	return v.through(ctx, func(mnt Mount) error {
		before, shown := v.contents.shown, maps.Clone(v.contents.shown)
		for ref := range refused {
			shown[ref] = volume.Version{}
		}
		v.contents.proven = false
		v.receipts.beforeWrite(ctx, mnt.Root())
		result, err := v.contents.writer.Withdraw(ctx, mnt.Root(), refused, shown.Encode())
		v.p.opts.Observer.RecordWrite(result.Changed, result.Bytes, err)
		v.written(ctx, mnt, result, 0)
		if result.Changed {
			v.switchedNow()
		}
		if err != nil {
			return fmt.Errorf("withdraw files of volume %s: %w", v.id, err)
		}
		v.contents.shown, v.contents.withdrawn = shown, maps.Clone(refused)
		v.set(func() { v.told.withdraw(refused) })
		if result.Changed {
			v.logUpdate(ctx, before)
		}
		return v.measure(mnt)
	})
}
