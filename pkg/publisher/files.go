package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

const (
	// readTime after a switch ..data does not switch again: so where there is no room for earlier
	// generations, readers have that long. A change that comes alone is never held up; of a burst, the
	// latest state counts.
	readTime = 25 * time.Millisecond
	// pruneTime after it was superseded a generation is removed: what it
	// shows may have been revoked.
	pruneTime = time.Second
	// maxKept is how many handles are kept at most, of two descriptors each.
	maxKept = 512
)

// through calls do with a handle on the volume's mount. If that is not proven to be the volume's, nothing is written, and
// what is there is looked for. The handle is kept until the last generation that is to go has gone: to open one costs as
// much as a small write, and to close one has the kernel wait for all processors.
func (v *vol) through(ctx context.Context, do func(Mount) error) (err error) {
	mnt, err := v.open(ctx)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		v.seen = false
		return pending(errLost)
	case err != nil:
		return fmt.Errorf("open volume %s at %s: %w", v.id, v.target, err)
	}
	done := false
	defer func() { // also after a panic
		if done && err == nil && v.contents.leftover == nil && !v.contents.pruneAt.IsZero() && v.p.kept.TryAcquire(1) {
			v.contents.kept = mnt
			return
		}
		err = errors.Join(err, mnt.Close())
	}()
	err = do(mnt)
	done = true
	return err
}

// open takes the handle that is kept, if its volume is still what is mounted at the target, or opens one.
func (v *vol) open(ctx context.Context) (Mount, error) {
	if kept := v.contents.kept; kept != nil {
		if kept.StillAt(v.target) {
			v.contents.kept = nil
			v.p.kept.Release(1)
			return kept, nil
		}
		if err := v.giveBack(); err != nil {
			return nil, err
		}
	}
	return v.p.opts.Mounts.Reopen(ctx, v.id, v.target)
}

// giveBack closes the handle that is kept, if there is one.
func (v *vol) giveBack() error {
	kept := v.contents.kept
	if kept == nil {
		return nil
	}
	v.contents.kept = nil
	v.p.kept.Release(1)
	return kept.Close()
}

// tidy does what is due, and returns when something is due next: it prunes, looks at the receipts of a volume that was found,
// and gives files their receipts. The error names what could not be removed, which keeps no update from the files.
func (v *vol) tidy(ctx context.Context) (next time.Time, err error) {
	if at := v.tidyAt(); !at.IsZero() && !time.Now().Before(at) {
		err = v.through(ctx, func(mnt Mount) error {
			v.pruneThrough(mnt)
			v.receipts.save(ctx, mnt.Root())
			v.reportOpened(ctx, true)
			return nil
		})
	}
	if err = also(err, v.contents.leftover); err != nil {
		return time.Time{}, err // a retry comes
	}
	return v.tidyAt(), nil
}

func (v *vol) tidyAt() time.Time {
	return earlier(v.contents.pruneAt, v.receipts.dueAt())
}

func (v *vol) pruneIsDue() bool {
	at := v.contents.pruneAt
	return !at.IsZero() && !time.Now().Before(at)
}

// pruneThrough removes each earlier generation once its readers have had their time.
func (v *vol) pruneThrough(mnt Mount) {
	for v.pruneIsDue() { // the next one may be due by now
		if v.pruneBefore(mnt, time.Now().Add(-pruneTime)); v.contents.leftover != nil {
			return
		}
	}
}

// pruneNow removes all earlier generations.
func (v *vol) pruneNow(mnt Mount) { v.pruneBefore(mnt, time.Now()) }

func (v *vol) pruneBefore(mnt Mount, before time.Time) {
	next, err := writer.Prune(mnt.Root(), before, v.receipts.removing)
	v.contents.pruneAt, v.contents.leftover = time.Time{}, nil
	if !next.IsZero() { // of a volume that changes often, several go at once, and not with its next change
		v.contents.pruneAt = time.Now().Add(pruneTime + rand.N(pruneTime))
	}
	if err = errors.Join(err, v.measure(mnt)); err != nil {
		v.contents.pruneAt = time.Now() // it is tried again
		v.contents.leftover = fmt.Errorf("prune volume %s: %w", v.id, err)
	}
}

// reserve says whether the volume may hold a tree, and the pod and the node: what others hold, and the tree, have to fit the
// pod's share and the node's total. What takes no more than the volume holds anyway passes, also after a limit was lowered.
// Where there is no room, what the pod's volumes keep for their readers goes, and never what other pods' do.
func (v *vol) reserve(ctx context.Context, tree *volume.Payload) error {
	size := writer.Measure(tree)
	takes := memoryOf(size.Bytes, size.Inodes+overhead(tree.Record))
	if v.mounted && memoryOf(size.Bytes, size.Inodes) <= v.size {
		return nil
	}
	if err := v.p.limits.check(size); err != nil {
		return err
	}
	if v.fits(takes) == nil {
		return nil
	}
	if err := v.worker.makeRoom(ctx); err != nil {
		return err
	}
	return v.fits(takes)
}

// makeRoom removes what the pod's volumes keep for their readers.
func (w *worker) makeRoom(ctx context.Context) error {
	w.p.mu.Lock()
	all := slices.Collect(maps.Keys(w.all))
	w.p.mu.Unlock()
	var errs []error
	for _, v := range all {
		if v.mounted && v.spec != nil && !v.contents.pruneAt.IsZero() {
			errs = append(errs, v.through(ctx, func(mnt Mount) error { v.pruneNow(mnt); return nil }))
		}
	}
	return errors.Join(errs...)
}

// fits returns why the volume may not hold so many bytes beside what the pod's other volumes and the node's hold, nil if it may.
func (v *vol) fits(takes int64) error {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	share, pod := max(v.p.opts.MaxTotalSize/podShare, v.p.opts.MaxVolumeSize), -v.size
	for other := range v.worker.all {
		pod += other.size
	}
	switch others := v.p.used - v.size; {
	case pod+takes > share:
		return fail(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the pod's other volumes %d, together more than %d (a pod's share: an eighth of --max-total-size, but at least --max-volume-size)", takes, pod, share)
	case others+takes > v.p.opts.MaxTotalSize:
		return fail(ReasonNodeFull, "the files and their inodes take %d bytes of memory, the node's other volumes %d, together more than %d (--max-total-size)", takes, others, v.p.opts.MaxTotalSize)
	}
	return nil
}

// settle counts what a volume holds after a write. A volume that nobody sees yet is not made if the pod or the node holds too
// much with it, as others may have grown meanwhile; of another one, what is kept for readers goes.
func (v *vol) settle(mnt Mount) error {
	if err := v.measure(mnt); err != nil {
		return err
	}
	full := v.fits(v.size)
	if full == nil || !v.mounted {
		return full
	}
	v.pruneNow(mnt)
	if v.contents.leftover == nil { // a reader may have a file of what has gone open, which then still counts
		v.contents.pruneAt = time.Now().Add(pruneTime)
	}
	return v.measure(mnt)
}

// measure counts what a volume's file system holds, also for those who have old files open: the kernel says so.
func (v *vol) measure(mnt Mount) error {
	usage, err := mnt.Usage()
	if err != nil {
		return fmt.Errorf("measure volume %s: %w", v.id, err)
	}
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.charge(memoryOf(usage.Used, usage.InodesUsed))
	return nil
}
