package publisher

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// vol is one volume, as its pod's worker sees it. Each part owns its state. Only the methods of vol use several parts.
//
//	                    bind, admit, answers       create, attach        again and again
//	publish ──► absent ───────────────────► rendered ─────────► mounted ◄───────────────┐
//	start ────► found ── look ── derive, bind ──────────────────► │ update, withdraw,   │
//	                                                              │ prune, save receipts┘
//	unpublish ──────────────────────────────────────────────────► unmount, unbind, remove
type vol struct {
	shared   *shared
	entry    *entry
	binding  *binding
	files    *files
	receipts *opened.Receipts
	// clock is nil if the volume has no spread.
	clock  *stage.Clock
	staged staged
	// seen means that the target has been examined.
	seen bool
	// failures counts retried failures in a row.
	failures int
	// changedAt is when the first change came that the files don't show yet; zero for none.
	changedAt time.Time
}

func newVolume(s *shared, e *entry) *vol {
	return &vol{
		shared: s, entry: e,
		binding: &binding{shared: s, entry: e}, files: &files{shared: s, entry: e},
		receipts: opened.New(opened.Options{
			Watcher: s.opts.Opens, Owner: string(e.worker.uid), AttributePrefix: s.opts.AttributePrefix, Delay: receiptTime, Wake: e.wake,
		}),
	}
}

// settleChange ends the waiting of a change, unless the failure says that it still waits. The wait for the pod's moment does not count as
// propagation time.
func (v *vol) settleChange(f *failure) {
	if f == nil || !f.retry && !f.unanswered {
		v.changedAt = v.staged.Until // zero: the change is shown, or cannot be
	}
}

// retryAt counts failures that are retried, and returns when to retry; zero for never.
func (v *vol) retryAt(f *failure) time.Time {
	if f == nil || !f.retry {
		v.failures = 0
		return time.Time{}
	}
	at := time.Now().Add(min(retryMin<<min(v.failures, 10), retryMax))
	v.failures++
	return at
}

// doubt makes the next reconcile examine everything again, after a panic.
func (v *vol) doubt() { v.seen, v.files.verified = false, false }

// opensLost notes that opens of files may have been missed. It is safe for concurrent use.
func (v *vol) opensLost() { v.receipts.Lost() }

// close saves the receipts that have arrived and closes the kept handle, when the process ends.
func (v *vol) close(ctx context.Context) {
	if v.entry.isMounted() && !v.receipts.DueAt().IsZero() {
		_ = v.files.through(ctx, func(mnt Mount) error { v.receipts.Save(ctx, mnt.Root()); return nil })
	}
	_ = v.files.closeHandle()
}

// unmount unmounts a volume. It has its own timeout, because the unpublish that asks for it may have cancelled this reconcile. If it fails,
// the volume continues until the kubelet's next try, because pods still see its files. A volume that is not mounted is forgotten before
// the unpublish returns, because the next call for the volume would be refused until then. Only a publish that waits keeps it.
func (v *vol) unmount(ctx context.Context) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), reconcileTimeout)
	defer cancel()
	err := v.files.closeHandle()
	if err == nil {
		err = v.shared.opts.Mounts.Unmount(limited, v.entry.id, v.entry.target)
	}
	if err != nil && v.entry.isMounted() {
		v.entry.set(func() { v.entry.noteUnmount(err) })
		return
	}
	if logger := klog.FromContext(ctx).V(2); err == nil && logger.Enabled() {
		logger.Info("Unpublished volume", "refs", describe(v.entry.report.refs, v.files.shown), "reason", "the kubelet asked for it")
	}
	v.release()
	v.entry.removeIf(func() bool {
		v.entry.noteUnmount(err)
		return v.entry.wanted.going || !v.entry.wanted.waits
	})
}

// forget removes a volume that is not mounted from the table, unless a call has come since the worker decided.
func (v *vol) forget() {
	v.release()
	v.entry.removeIf(func() bool { return !v.entry.wanted.going && !v.entry.wanted.waits })
}

// release releases what a volume that is not mounted has kept.
func (v *vol) release() {
	v.binding.unbind()
	v.receipts.Close()
	_ = v.files.closeHandle() // nothing is mounted there any more
}

// look examines the target once: after a start, before the first write, and after a mount was lost.
func (v *vol) look(ctx context.Context) *failure {
	if v.seen {
		return nil
	}
	e := v.entry
	root, usage, err := v.shared.opts.Mounts.Open(ctx, e.id, e.target)
	switch {
	case err == nil:
		defer root.Close()
	case errors.Is(err, mount.ErrForeign) && e.isMounted(): // its attribute was damaged
		return final(ReasonInvalid, "what is mounted at %s is not proven to be volume %s, as its root directory lacks the attribute: replace the pod: %w", e.target, e.id, err)
	case errors.Is(err, mount.ErrForeign):
		return lookFailed(e, err)
	case errors.Is(err, mount.ErrOutside):
		return final(ReasonInvalid, "target_path: %w", err)
	case !errors.Is(err, mount.ErrNotMounted):
		// It may be mounted, and a pod may be reading it. After a final error the kubelet would destroy it.
		return unavailable("look at the target of volume %s: %w", e.id, err)
	}
	isMounted := err == nil
	if !isMounted && v.files.shown != nil {
		klog.FromContext(ctx).Info("Volume is no longer mounted", "target", e.target)
	}
	text := ""
	if isMounted {
		if text, err = writer.Record(root, v.shared.opts.AttributePrefix); err != nil {
			return unavailable("read the record of volume %s: %w", e.id, err)
		}
	}
	v.binding.unbind()
	v.receipts.Close()
	if err := v.files.forget(); err != nil {
		return unavailable("close the mount of volume %s: %w", e.id, err)
	}
	if isMounted {
		v.files.find(text, writer.Present(root))
		v.binding.find(root)
		v.receipts.Find(v.files.generations.pruneAt)
	}
	v.seen = true
	holds := room.MemoryOf(usage.Used, usage.InodesUsed)
	e.room.Hold(holds)
	e.room.Need(holds) // an upper limit
	e.set(func() {
		e.phase = absent
		if isMounted {
			e.phase = mounted
		}
		e.report.withdrawn, e.report.opened = nil, nil
		if e.wanted.request == nil {
			e.report.pod = v.binding.hint
		}
	})
	return nil
}

func lookFailed(e *entry, err error) *failure {
	f := unavailable("look at the target of volume %s: %w", e.id, err)
	f.reason = 0
	return f
}

// takeOver prepares the parts for a newly bound request.
func (v *vol) takeOver(ctx context.Context) {
	spec, e := v.binding.spec, v.entry
	writes := writer.Options{AttributePrefix: v.shared.opts.AttributePrefix, InPlace: spec.InPlace()}
	v.files.bind(v.receipts.Bind(writes, spec.versionsPath()), spec.refs)
	if v.clock = nil; spec.Spread != 0 {
		v.clock = stage.NewClock(e.worker.uid, spec.Spread)
	}
	if e.isMounted() {
		klog.FromContext(ctx).V(2).Info("Took over a mounted volume", "refs", describe(spec.refs, v.files.shown))
		if !spec.Pinned() { // a pinned volume needs no object any more
			v.binding.keepObjects()
		}
	}
	e.set(func() {
		e.report.refs, e.report.pinned = spec.refs, spec.Pinned()
		if e.isMounted() && (spec.Pinned() || !spec.InPlace()) {
			// The record already has the new versions before the first byte is rewritten in place.
			e.report.shown = v.files.shown
		}
	})
	v.reportOpened(ctx, false)
}

// tidy prunes, saves receipts and measures, as far as these are due, and returns when tidy is due next. measure means that the node is
// full. The failure names what could not be removed. It does not stop updates of the files.
func (v *vol) tidy(ctx context.Context, measure bool) (next time.Time, f *failure) {
	now := time.Now()
	if isDue(v.tidyAt(), now) || measure {
		err := v.files.through(ctx, func(mnt Mount) error {
			v.files.pruneIfDue(mnt, v.receipts.Removing)
			v.receipts.Save(ctx, mnt.Root())
			v.reportOpened(ctx, true)
			return v.files.measure(mnt)
		})
		if err != nil {
			f = v.filesFailed(err)
		}
		v.reportWithdrawn(nil)
	}
	if left := v.files.generations.leftover; left != nil {
		f = also(f, broken(left))
	}
	if f != nil {
		return time.Time{}, f // a retry follows
	}
	return v.tidyAt(), nil
}

func (v *vol) tidyAt() time.Time {
	return earlier(earlier(v.files.generations.pruneAt, v.files.measureAt(v.shared.opts.ResyncInterval)), v.receipts.DueAt())
}

// filesFailed returns the failure of work on the files. If nothing is mounted, the target is examined again.
func (v *vol) filesFailed(err error) *failure {
	if errors.Is(err, errLost) {
		v.seen = false
		return waiting(err)
	}
	return broken(err)
}

// reportOpened reports which objects were opened. saved means that receipts may just have been written. An object whose last file got its
// receipt is then observed.
func (v *vol) reportOpened(ctx context.Context, saved bool) {
	if v.shared.opts.Opens == nil || v.binding.spec == nil {
		return
	}
	now := v.receipts.States(v.binding.spec.refs)
	for ref, o := range now {
		if was := v.entry.report.opened[ref]; saved && o.State == opened.Yes && was != nil && was.State != opened.Yes {
			took := o.At.Sub(o.Since)
			v.shared.opts.Observer.Opened(took)
			klog.FromContext(ctx).V(2).Info("Object was opened", "ref", ref.String(), "version", v.files.shown[ref].ResourceVersion, "after", took)
		}
	}
	v.entry.set(func() { v.entry.report.opened = now })
}

// reportWithdrawn reports the refused objects of which no file remains. nil stands for the objects that were withdrawn. A superseded
// generation may still have their files, so it must be gone first. It is called before each write, so that the report never names an object
// that the write may show again, and also after the write and after tidy.
func (v *vol) reportWithdrawn(refused map[volume.Ref]bool) {
	if refused == nil {
		refused = v.files.withdrawn
	}
	gone := map[volume.Ref]bool{}
	for ref := range refused {
		if v.files.withdrawn[ref] && (v.entry.report.withdrawn[ref] || !v.files.generations.isAnyLeft()) {
			gone[ref] = true
		}
	}
	if !maps.Equal(gone, v.entry.report.withdrawn) {
		v.entry.set(func() { v.entry.report.withdrawn = gone })
	}
}

// reportNews has the worker log a volume's new state, and reports failures to the pod's author. nil means success.
func (v *vol) reportNews(ctx context.Context, f *failure) {
	logger, news := klog.FromContext(v.entry.logged(ctx)), &v.entry.worker.news
	switch {
	case !v.entry.isMounted(): // the failing call is logged
	case f == nil:
		news.add(v.entry, "", func(more ...any) { logger.Info("Volume is current again", more...) })
		return
	case f.event == string(ConditionSpreading):
		logger.V(2).Info("An update waits for the pod's moment", "at", f.until)
		return
	case f.event == string(ConditionHeld):
		logger.V(2).Info("An update is held", "reason", f.Error())
		return
	case f.silent, f.event == string(ConditionStale):
		news.add(v.entry, f.newsKind(), func(more ...any) {
			logger.Info("A mounted volume is not updated", append([]any{"target", v.entry.target, "reason", f}, more...)...)
		})
		return
	default:
		news.add(v.entry, f.newsKind(), func(more ...any) { logger.Error(f, "Volume does not show what it should", more...) })
	}
	if pod := v.entry.report.pod; pod.Name != "" {
		text := f.Error()
		if v.entry.isMounted() && isMissing(f) {
			text += "; the files stay as they are"
		}
		v.shared.opts.Events.Warn(pod, f.event, text)
	}
}

// isMissing reports whether a failure is about a missing object or key.
func isMissing(f *failure) bool { return errors.As(f.err, new(*payload.MissingError)) }
