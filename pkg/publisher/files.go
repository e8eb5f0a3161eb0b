package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// maxKept is how many handles are kept at most, of two descriptors each.
const maxKept = 512

// files are what is in a volume. The pod's worker owns them. They know versions of objects, and nothing of who asked.
type files struct {
	shared *shared
	entry  *entry
	// writes is how writer writes.
	writes writer.Options
	writer treeWriter
	// handle is one on the volume's mount that is kept, nil for none.
	handle Mount
	// record is that of a volume which was found, until its objects are known. shown is what the files show.
	record string
	shown  record.Versions
	// withdrawn holds the refused objects of which this process has seen to it that no file is there.
	withdrawn map[volume.Ref]bool
	// verified says that this process wrote or compared the files at shown.
	verified bool
	// torn says that a rewrite in place has not ended, so some files may be older than shown.
	torn        bool
	generations generations
	// measuredAt is when it was measured what the file system holds.
	measuredAt time.Time
	// skipped is what was last reported of the variables that the env files lack.
	skipped string
}

// bind says how the files are written, and of which objects they are. Of a volume that was found, the record says now what
// they show.
func (f *files) bind(opts writer.Options, refs []volume.Ref) {
	if f.writer == nil {
		f.writes, f.writer = opts, f.shared.newWriter(opts)
	}
	if f.entry.isMounted() && f.shown == nil {
		f.shown = record.Decode(f.record, refs)
	}
}

// find notes what is known of a mounted volume that this process has not written: its record, and its generation.
func (f *files) find(text, generation string) {
	f.record, f.torn = text, writer.IsTorn(text)
	f.generations.find(generation, f.entry.since)
	f.measuredAt = time.Now()
}

// forget forgets everything: what is at the target is looked at.
func (f *files) forget() error {
	err := f.closeHandle()
	*f = files{shared: f.shared, entry: f.entry, writer: nil}
	return err
}

// reset forgets what was written to a volume that did not become visible.
func (f *files) reset() {
	*f = files{shared: f.shared, entry: f.entry, writes: f.writes, writer: f.writer}
}

// has says whether the files show, or showed, an object.
func (f *files) has(ref volume.Ref) bool { return f.shown[ref].UID != "" }

// showsAny says whether files of one of refused are, or may be, there.
func (f *files) showsAny(refused map[volume.Ref]bool) bool {
	for ref := range refused {
		if !f.withdrawn[ref] {
			return true
		}
	}
	return false
}

// isCurrent says whether the files are known to show the objects as they are.
func (f *files) isCurrent(got *answers) bool {
	return f.entry.isMounted() && f.verified && got.unknown == nil && maps.Equal(f.shown, got.at) && maps.Equal(f.withdrawn, got.refused)
}

// isOlder returns an object whose version is older than what the files show of it. An API server may answer so after a
// restart of this process, while it catches up.
func (f *files) isOlder(at record.Versions) (volume.Ref, bool) {
	for ref, version := range at {
		shown := f.shown[ref]
		if shown.ResourceVersion == "" || version.ResourceVersion == "" {
			continue
		}
		order, err := resourceversion.CompareResourceVersion(version.ResourceVersion, shown.ResourceVersion)
		if err == nil && order < 0 {
			return ref, true
		}
	}
	return volume.Ref{}, false
}

// isUrgent says whether what differs between the files and the answers does not wait: files that are not those of the record,
// objects that the pod may have again, and those that are deleted and whose files are to go.
func (f *files) isUrgent(got *answers, removeDeleted bool) bool {
	if maps.Equal(f.shown, got.at) || f.torn {
		return true
	}
	for ref, version := range got.at {
		isAgain := f.withdrawn[ref] && !got.refused[ref]
		isGone := f.has(ref) && version.UID == "" && !got.refused[ref] && removeDeleted
		if isAgain || isGone {
			return true
		}
	}
	return false
}

// write makes the files show a tree, of answers. On an error they stay as they were, or are current and some link is not;
// another write mends that.
func (f *files) write(ctx context.Context, mnt Mount, tree *volume.Payload, got *answers) (writer.Result, error) {
	f.verified = false
	result, err := f.writer.Write(ctx, mnt.Root(), tree)
	if result.Changed {
		f.generations.note(result.Generation, f.entry.isMounted())
	}
	switch {
	case err == nil:
		f.shown, f.withdrawn, f.verified, f.torn = got.at, got.refused, true, false
		size := writer.Measure(tree)
		f.entry.set(func() { f.entry.memory.tree = memoryOf(size.Bytes, size.Inodes+overhead(tree.Record)) })
	case result.Changed:
		// Some files may still be those of before, where they are rewritten in place. So nothing older
		// may follow, and the status goes on to report what was shown by all files.
		f.shown, f.withdrawn, f.torn = got.at, nil, f.writes.InPlace
	}
	return result, err
}

// withdraw takes the files of refused objects away, and all earlier generations. A file that had others too is not there then,
// so the files are not those of the record.
func (f *files) withdraw(ctx context.Context, mnt Mount, refused map[volume.Ref]bool) (writer.Result, error) {
	shown := maps.Clone(f.shown)
	for ref := range refused {
		shown[ref] = volume.Version{}
	}
	f.verified = false
	result, err := f.writer.Withdraw(ctx, mnt.Root(), refused, shown.Encode())
	if result.Changed {
		f.generations.note(result.Generation, f.entry.isMounted())
	}
	switch {
	case err == nil:
		f.shown, f.withdrawn = shown, maps.Clone(refused)
	case result.Changed:
		f.torn = f.torn || f.writes.InPlace
	}
	return result, err
}

// pruneIfDue removes the generations whose readers have had their time, if that is due.
func (f *files) pruneIfDue(mnt Mount, removing func(file int)) {
	if now := time.Now(); isDue(f.generations.pruneAt, now) {
		f.prune(mnt, now.Add(-pruneTime), removing)
	}
}

// pruneAll removes all superseded generations, and measures what is left.
func (f *files) pruneAll(mnt Mount, removing func(file int)) error {
	f.prune(mnt, time.Now(), removing)
	return f.measure(mnt)
}

// prune removes the generations that were superseded at before or earlier.
func (f *files) prune(mnt Mount, before time.Time, removing func(file int)) {
	left, err := writer.Prune(mnt.Root(), func(name string) bool { return f.generations.endOf(name).After(before) }, removing)
	if err != nil {
		err = fmt.Errorf("prune volume %s: %w", f.entry.id, err)
	}
	f.generations.pruned(left, before, err)
}

// measure counts what the volume's file system holds, also for those who have old files open: the kernel says so.
func (f *files) measure(mnt Mount) error {
	usage, err := mnt.Usage()
	if err != nil {
		return fmt.Errorf("measure volume %s: %w", f.entry.id, err)
	}
	f.measuredAt = time.Now()
	size := memoryOf(usage.Used, usage.InodesUsed)
	f.entry.table.mu.Lock()
	defer f.entry.table.mu.Unlock()
	f.entry.charge(size)
	if !f.generations.isAnyLeft() {
		f.entry.memory.tree = min(f.entry.memory.tree, size) // of a volume that was found, less than was known
	}
	return nil
}

// measureAt returns when a volume is measured again that holds more than its files take: its readers may have closed old ones.
func (f *files) measureAt(interval time.Duration) time.Time {
	if !f.entry.holdsOld() || f.generations.isAnyLeft() {
		return time.Time{}
	}
	return f.measuredAt.Add(interval)
}

// through calls do with a handle on the volume's mount. If that is not proven to be the volume's, nothing is written, and the
// error is errLost. The handle is kept until the last generation that is to go has gone: to open one costs as much as a small
// write, and to close one has the kernel wait for all processors.
func (f *files) through(ctx context.Context, do func(Mount) error) (err error) {
	mnt, err := f.open(ctx)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		return errLost
	case err != nil:
		return fmt.Errorf("open volume %s at %s: %w", f.entry.id, f.entry.target, err)
	}
	isDone := false
	defer func() { // also after a panic
		if isDone && err == nil && f.generations.leftover == nil && f.generations.isAnyLeft() && f.shared.kept.TryAcquire(1) {
			f.handle = mnt
			return
		}
		if closeErr := mnt.Close(); closeErr != nil {
			err = errors.Join(err, closeErr)
		}
	}()
	err = do(mnt)
	isDone = true
	return err
}

// open takes the handle that is kept, if its volume is still what is mounted at the target, or opens one.
func (f *files) open(ctx context.Context) (Mount, error) {
	if kept := f.handle; kept != nil {
		if kept.StillAt(f.entry.target) {
			f.handle = nil
			f.shared.kept.Release(1)
			return kept, nil
		}
		if err := f.closeHandle(); err != nil {
			return nil, err
		}
	}
	return f.shared.opts.Mounts.Reopen(ctx, f.entry.id, f.entry.target)
}

// closeHandle closes the handle that is kept, if there is one.
func (f *files) closeHandle() error {
	kept := f.handle
	if kept == nil {
		return nil
	}
	f.handle = nil
	f.shared.kept.Release(1)
	return kept.Close()
}
