package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/stage"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// vol is one volume. Only its pod's worker uses it, except opensLost. Each part owns its state, and only the methods of vol use several parts.
//
//	                    Bind, Admit, Answers       create, attach        again and again
//	publish ──► absent ───────────────────► rendered ─────────► mounted ◄───────────────┐
//	start ────► found ── look ── Derive, Bind ──────────────────► │ update, withdraw,   │
//	                                                              │ prune, save receipts┘
//	unpublish ──────────────────────────────────────────────────► unmount, unbind, remove
type vol struct {
	*node
	binding.Place
	host     host
	room     *room.Volume
	binding  *binding.Binding
	files    files
	receipts *opened.Receipts
	// clock is nil if the volume has no spread.
	clock  *stage.Clock
	staged staged
	report report
	// isMounted means that the volume is visible, as far as this process knows. isSeen means that the target has been examined.
	isMounted, isSeen bool
	// retries counts failed reconciles in a row that were retried.
	retries int
	// changedAt is when the first change came that the files don't show yet; zero for none.
	changedAt time.Time
}

// host is what a volume asks of the table. Its functions are constant and safe for concurrent use.
type host struct {
	// wake schedules a reconcile at a time, or keeps an earlier one.
	wake func(at time.Time)
	// follow makes changes of objects wake the volume, as far as an account sees them. It replaces what was followed before.
	follow func(account volume.ServiceAccount, refs []volume.Ref)
	// tell replaces what is told of the volume.
	tell func(state)
	// mayAttach reports whether a publish still waits. If so, the volume is being attached from then on, until it is told otherwise.
	mayAttach func() bool
	// makeRoom removes what the pod's volumes keep for their readers.
	makeRoom func(ctx context.Context)
}

// staged is what a volume does not take yet. The zero value is nothing.
type staged struct {
	// newest are the versions, and unknown the objects, for which this was decided.
	newest  record.Versions
	unknown map[volume.Ref]bool
	stage.Decision
	// waits reports it. mistake is a fault of an annotation because of which no pod can take an object, or nil.
	waits   waits
	mistake *failure.Failure
}

func newVolume(n *node, at binding.Place, h host, space *room.Volume) *vol {
	return &vol{
		node: n, Place: at, host: h, room: space,
		binding: binding.New(n.bindings, at, space), files: newFiles(n, at, space),
		receipts: opened.New(opened.Options{
			Watcher: n.opts.Opens, Owner: string(at.UID), AttributePrefix: n.opts.AttributePrefix, Delay: receiptTime, Wake: h.wake,
		}),
		report: newReport(at),
	}
}

// logged returns ctx with a logger that names the volume's ID, the pod of a request, and the volume's name in the pod's spec. The lines count
// for the pod.
func (v *vol) logged(ctx context.Context, request *binding.Request) context.Context {
	if request != nil && request.PodErr == nil {
		v.report.pod = request.Pod
	}
	logger, pod := klog.FromContext(ctx).WithValues("volumeID", v.ID), v.report.pod
	if pod.Name != "" {
		logger = logger.WithValues("pod", klog.KRef(pod.Namespace, pod.Name))
	}
	logger = logger.WithValues("volume", v.Name)
	return klog.NewContext(ctx, v.opts.LogLimit.Logger(logger, volume.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: v.UID}))
}

// settleChange ends the waiting of a change, unless a failure says that it still waits. The wait for the pod's moment does not count as
// propagation time.
func (v *vol) settleChange(found failure.List) {
	if !found.IsRetried() && !found.IsUnanswered() {
		v.changedAt = v.staged.Until // zero: the change is shown, or cannot be
	}
}

// retryAt counts reconciles that are retried, and returns when to retry; zero for never.
func (v *vol) retryAt(found failure.List) time.Time {
	if !found.IsRetried() {
		v.retries = 0
		return time.Time{}
	}
	at := time.Now().Add(min(retryMin<<min(v.retries, 10), retryMax))
	v.retries++
	return at
}

// opensLost notes that opens of files may have been missed. It is safe for concurrent use.
func (v *vol) opensLost() { v.receipts.Lost() }

// close saves the receipts that have arrived and closes the kept handle, when the process ends.
func (v *vol) close(ctx context.Context) {
	if v.isMounted && !v.receipts.DueAt().IsZero() {
		_ = v.saveReceipts(ctx)
	}
	_ = v.files.closeHandle()
}

func (v *vol) saveReceipts(ctx context.Context) (err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return err
	}
	defer v.files.giveBack(mnt, &err)
	v.receipts.Save(ctx, mnt.Root())
	return nil
}

// unmount unmounts the volume and releases what it has kept. It has its own timeout, because the unpublish that asks for it may have
// cancelled this reconcile. If it fails, a mounted volume continues until the kubelet's next try, because pods still see its files.
func (v *vol) unmount(ctx context.Context) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), reconcileTimeout)
	defer cancel()
	err := v.files.closeHandle()
	if err == nil {
		err = v.opts.Mounts.Unmount(limited, v.ID, v.Target)
	}
	if err != nil && v.isMounted {
		return err
	}
	if logger := klog.FromContext(ctx).V(2); err == nil && logger.Enabled() {
		logger.Info("Unpublished volume", "refs", describe(v.report.refs, v.files.Shown), "reason", "the kubelet asked for it")
	}
	v.release()
	return err
}

// release releases what a volume that is not mounted has kept.
func (v *vol) release() {
	v.unbind()
	v.receipts.Close()
	_ = v.files.closeHandle() // nothing is mounted there any more
}

// unbind undoes what follow has bound. It is idempotent.
func (v *vol) unbind() {
	v.host.follow(volume.ServiceAccount{}, nil)
	v.binding.Unbind()
}

// leave has no object followed any more, because the files of a pinned volume are never written again.
func (v *vol) leave() {
	v.host.follow(volume.ServiceAccount{}, nil)
	v.binding.Release()
}

// look examines the target once: after a start, before the first write, and after a mount was lost. All that was known of the volume is
// forgotten.
func (v *vol) look(ctx context.Context) *failure.Failure {
	if v.isSeen {
		return nil
	}
	now, f := v.examine(ctx)
	if f != nil {
		return f
	}
	if !now.isMounted && v.files.Shown != nil {
		klog.FromContext(ctx).Info("Volume is no longer mounted", "target", v.Target)
	}
	v.unbind()
	v.receipts.Close()
	if err := v.files.forget(); err != nil {
		return failure.Unavailable("close the mount of volume %s: %w", v.ID, err)
	}
	if now.isMounted {
		v.files.find(now.record, now.generation)
		v.binding.SetHint(now.pod, now.podErr)
		v.receipts.Find(v.files.generations.pruneAt)
	}
	v.isSeen, v.isMounted = true, now.isMounted
	v.room.Hold(now.holds)
	v.room.Need(now.holds) // an upper limit
	v.report.found(v.binding.Hint())
	v.tell()
	return nil
}

// examined is what look has found at the target: the volume's record, its present generation, the pod that it names, and its memory in bytes.
type examined struct {
	isMounted          bool
	record, generation string
	pod                volume.Pod
	podErr             error
	holds              int64
}

// examine reads what is mounted at the target.
func (v *vol) examine(ctx context.Context) (now examined, f *failure.Failure) {
	root, usage, err := v.opts.Mounts.Open(ctx, v.ID, v.Target)
	switch {
	case err == nil:
		defer root.Close()
	case errors.Is(err, mount.ErrNotMounted):
		return now, nil
	case errors.Is(err, mount.ErrForeign) && v.isMounted: // its attribute was damaged
		return now, failure.Final(failure.ReasonInvalid, fmt.Errorf("what is mounted at %s is not proven to be volume %s, as its root directory lacks the attribute: replace the pod: %w", v.Target, v.ID, err))
	case errors.Is(err, mount.ErrForeign):
		return now, failure.Broken(0, fmt.Errorf("look at the target of volume %s: %w", v.ID, err))
	case errors.Is(err, mount.ErrOutside):
		return now, failure.Final(failure.ReasonInvalid, fmt.Errorf("target_path: %w", err))
	default: // it may be mounted, and a pod may be reading it: after a final error the kubelet would destroy it
		return now, failure.Unavailable("look at the target of volume %s: %w", v.ID, err)
	}
	now.isMounted, now.generation, now.holds = true, writer.Present(root), room.MemoryOf(usage.Used, usage.InodesUsed)
	if now.record, err = writer.Record(root, v.opts.AttributePrefix); err != nil {
		return now, failure.Unavailable("read the record of volume %s: %w", v.ID, err)
	}
	now.pod.UID = v.UID
	now.pod.Namespace, now.pod.Name, now.podErr = record.Pod(root, v.opts.AttributePrefix)
	return now, nil
}

// takeOver prepares the parts for a newly bound request.
func (v *vol) takeOver(ctx context.Context) {
	spec := v.binding.Spec()
	v.host.follow(v.binding.Request().Pod.Account(), spec.Refs)
	writes := writer.Options{AttributePrefix: v.opts.AttributePrefix, InPlace: spec.InPlace()}
	writes = v.receipts.Bind(writes, spec.VersionsPath())
	v.files.bind(writes, v.opts.NewWriter, spec.Refs)
	if v.clock = nil; spec.Spread != 0 {
		v.clock = stage.NewClock(v.UID, spec.Spread)
	}
	v.report.refs, v.report.pinned = spec.Refs, spec.Pinned()
	if v.isMounted {
		klog.FromContext(ctx).V(2).Info("Took over a mounted volume", "refs", describe(spec.Refs, v.files.Shown))
		if !spec.Pinned() { // a pinned volume needs no object any more
			v.binding.KeepObjects()
		}
		if spec.Pinned() || !spec.InPlace() {
			// The record already has the new versions before the first byte is rewritten in place.
			v.report.shows(v.files.Record, nil)
		}
	}
	v.reportOpened(ctx, false)
	v.tell()
}

// tidy prunes, saves receipts and measures, as far as these are due, and returns when tidy is due next. measure means that the node is
// full. The failures name what could not be removed. They do not stop updates of the files.
func (v *vol) tidy(ctx context.Context, measure bool) (next time.Time, found failure.List) {
	if isDue(v.tidyAt(), time.Now()) || measure {
		found = found.With(v.failed(v.tidyFiles(ctx)))
		v.reportWithdrawn(nil)
	}
	if left := v.files.generations.leftover; left != nil {
		found = found.With(failure.Broken(0, left))
	}
	if len(found) > 0 {
		return time.Time{}, found // a retry follows
	}
	return v.tidyAt(), nil
}

func (v *vol) tidyFiles(ctx context.Context) (err error) {
	mnt, err := v.files.open(ctx)
	if err != nil {
		return err
	}
	defer v.files.giveBack(mnt, &err)
	v.files.pruneIfDue(mnt, v.receipts.Removing)
	v.receipts.Save(ctx, mnt.Root())
	v.reportOpened(ctx, true)
	return v.files.measure(mnt)
}

func (v *vol) tidyAt() time.Time {
	return earlier(earlier(v.files.generations.pruneAt, v.files.measureAt(v.opts.ResyncInterval)), v.receipts.DueAt())
}

// failed returns the failure of work on the files, or nil if err is nil. If nothing is mounted, the target is examined again.
func (v *vol) failed(err error) *failure.Failure {
	var f *failure.Failure
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.Is(err, errLost):
		v.isSeen = false
		return failure.Waiting(err)
	}
	return failure.Broken(0, err)
}

// reportOpened reports which objects were opened. saved means that receipts may just have been written. An object whose last file got its
// receipt is then observed.
func (v *vol) reportOpened(ctx context.Context, saved bool) {
	if v.opts.Opens == nil || v.binding.Spec() == nil {
		return
	}
	now := v.receipts.States(v.binding.Spec().Refs)
	for ref, o := range now {
		if was := v.report.opened[ref]; saved && o.State == opened.Yes && was != nil && was.State != opened.Yes {
			took := max(o.At.Sub(o.Since), 0) // the clock may have been set back
			v.opts.Observer.Opened(took)
			klog.FromContext(ctx).V(2).Info("Object was opened", "ref", ref.String(), "version", v.files.Shown[ref].ResourceVersion, "after", took)
		}
	}
	v.report.opened = now
}

// reportWithdrawn reports the refused objects of which no file remains. nil stands for the objects that were withdrawn. A superseded
// generation may still have their files, so it must be gone first.
func (v *vol) reportWithdrawn(refused map[volume.Ref]bool) {
	if refused == nil {
		refused = v.files.withdrawn
	}
	gone := map[volume.Ref]bool{}
	for ref := range refused {
		if v.files.withdrawn[ref] && (v.report.withdrawn[ref] || !v.files.generations.isAnyLeft()) {
			gone[ref] = true
		}
	}
	if !maps.Equal(gone, v.report.withdrawn) {
		v.report.withdrawn = gone
	}
}

// tell has the table tell the volume's present state.
func (v *vol) tell() { v.host.tell(v.report.state(v.isMounted)) }
