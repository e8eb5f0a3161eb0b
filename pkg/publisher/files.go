package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/mount"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/room"
	"github.com/refvol/refvol/pkg/volume"
	"github.com/refvol/refvol/pkg/writer"
)

// maxKept limits the kept handles. Each of them has two descriptors.
const maxKept = 512

// files are the files in a volume. The pod's worker owns them. They know versions of objects, and must not know who asked for them.
type files struct {
	// id and target are those of the volume. since is when this process started with it.
	id, target string
	since      time.Time
	mounts     Mounts
	kept       *semaphore.Weighted
	room       *room.Volume
	// writes are the options of writer.
	writes writer.Options
	writer Writer
	// handle is a kept handle on the volume's mount, or nil.
	handle Mount
	// text is the record of a mounted volume of an earlier process until its objects are known, or nil. Record is what the files show.
	text *string
	record.Record
	// withdrawn holds the refused objects for which this process has made sure that no file exists.
	withdrawn map[volume.Ref]bool
	// verified means that this process wrote the files at Shown, or compared them.
	verified bool
	// torn means that a rewrite in place has not finished, so some files may be older than Shown.
	torn        bool
	generations generations
	// measuredAt is when the file system's use was last measured.
	measuredAt time.Time
}

func newFiles(n *node, at binding.Place, space *room.Volume) files {
	return files{id: at.ID, target: at.Target, since: at.Since, mounts: n.opts.Mounts, kept: n.kept, room: space}
}

// bind sets how the files are written and which objects they show. For a mounted volume of an earlier process, the record is decoded now.
func (f *files) bind(opts writer.Options, newWriter func(writer.Options) Writer, refs []volume.Ref) {
	if f.writer == nil {
		f.writes, f.writer = opts, newWriter(opts)
	}
	if f.text != nil && f.Shown == nil {
		f.Record = record.Decode(*f.text, refs)
	}
}

// find stores what is known about a mounted volume that this process has not written: its record and its generation.
func (f *files) find(text, generation string) {
	f.text, f.torn = &text, writer.IsTorn(text)
	f.generations.find(generation, f.since)
	f.measuredAt = time.Now()
}

// forget forgets all state, because the target is about to be examined.
func (f *files) forget() error {
	err := f.closeHandle()
	f.writer = nil
	f.reset()
	return err
}

// reset forgets what was written to a volume that did not become visible.
func (f *files) reset() {
	*f = files{id: f.id, target: f.target, since: f.since, mounts: f.mounts, kept: f.kept, room: f.room, writes: f.writes, writer: f.writer}
}

// has reports whether the files show an object, or showed it.
func (f *files) has(ref volume.Ref) bool { return f.Shown[ref].UID != "" }

// showsAny reports whether files of a refused object exist, or may exist.
func (f *files) showsAny(refused map[volume.Ref]bool) bool {
	for ref := range refused {
		if !f.withdrawn[ref] {
			return true
		}
	}
	return false
}

// isCurrent reports whether the files are known to show objects as a record says, and nothing of refused ones.
func (f *files) isCurrent(r record.Record, refused map[volume.Ref]bool) bool {
	return f.verified && f.IsEqual(r) && maps.Equal(f.withdrawn, refused)
}

// newerThan returns the objects of which the files' record has a newer version than r, in order. An API server that is catching up may answer so
// after a restart of this process.
func (f *files) newerThan(r record.Record) (older []volume.Ref) {
	for _, versions := range []record.Versions{r.Shown, r.Absent} {
		for ref, version := range versions {
			known := cmp.Or(f.Shown[ref], f.Absent[ref])
			if known.ResourceVersion == "" || version.ResourceVersion == "" || known == version {
				continue
			}
			order, err := resourceversion.CompareResourceVersion(version.ResourceVersion, known.ResourceVersion)
			if err == nil && order < 0 {
				older = append(older, ref)
			}
		}
	}
	slices.SortFunc(older, volume.CompareRefs)
	return older
}

// write makes the files show a tree, which shows objects as a record says, and nothing of refused ones. After an error the files are as they
// were, or they are current and some link is not. The next write repairs that.
func (f *files) write(ctx context.Context, mnt Mount, tree *volume.Payload, r record.Record, refused map[volume.Ref]bool, isVisible bool) (writer.Result, error) {
	f.verified = false
	result, err := f.writer.Write(ctx, mnt.Root(), tree)
	if result.Changed {
		f.generations.note(result.Generation, isVisible)
	}
	switch {
	case err == nil:
		f.Record, f.withdrawn, f.verified, f.torn = r, refused, true, false
		f.room.Need(memoryOf(tree))
	case result.Changed:
		// With a rewrite in place, some files may still have the old content. No older version may follow, and the status continues to
		// report the versions that all files showed.
		f.Record, f.withdrawn, f.torn = r, nil, f.writes.InPlace
	}
	return result, err
}

// withdraw removes the files of refused objects, and all earlier generations. A file that several objects share is removed too, so the
// files then differ from the record.
func (f *files) withdraw(ctx context.Context, mnt Mount, refused map[volume.Ref]bool, isVisible bool) (writer.Result, error) {
	left := f.Without(refused)
	f.verified = false
	result, err := f.writer.Withdraw(ctx, mnt.Root(), refused, left.Encode())
	if result.Changed {
		f.generations.note(result.Generation, isVisible)
	}
	switch {
	case err == nil:
		f.Record, f.withdrawn = left, maps.Clone(refused)
	case result.Changed:
		f.torn = f.torn || f.writes.InPlace
	}
	return result, err
}

// pruneIfDue removes the generations whose pruneTime has passed, if that is due.
func (f *files) pruneIfDue(mnt Mount, removing func(file int)) {
	if now := time.Now(); isDue(f.generations.pruneAt, now) {
		f.prune(mnt, now.Add(-pruneTime), removing)
	}
}

// pruneAll removes all superseded generations and measures what is left.
func (f *files) pruneAll(mnt Mount, removing func(file int)) error {
	f.prune(mnt, time.Now(), removing)
	return f.measure(mnt)
}

// prune removes the generations that were superseded at or before a time.
func (f *files) prune(mnt Mount, before time.Time, removing func(file int)) {
	left, err := writer.Prune(mnt.Root(), func(name string) bool { return f.generations.endOf(name).After(before) }, removing)
	if err != nil {
		err = fmt.Errorf("prune volume %s: %w", f.id, err)
	}
	f.generations.pruned(left, before, err)
}

// measure asks the kernel how much the volume's file system holds, including old files that readers have open.
func (f *files) measure(mnt Mount) error {
	usage, err := mnt.Usage()
	if err != nil {
		return fmt.Errorf("measure volume %s: %w", f.id, err)
	}
	f.measuredAt = time.Now()
	size := room.MemoryOf(usage.Used, usage.InodesUsed)
	f.room.Hold(size)
	if !f.generations.isAnyLeft() {
		f.room.NeedAtMost(size) // for a volume of an earlier process this is less than was assumed
	}
	return nil
}

// measureAt returns when a volume is measured again that holds more than its files need: readers may have closed old files.
func (f *files) measureAt(interval time.Duration) time.Time {
	if !f.room.HoldsOld() || f.generations.isAnyLeft() {
		return time.Time{}
	}
	return f.measuredAt.Add(interval)
}

// open returns a handle on the volume's mount: the kept one if the volume is still mounted at the target, or else a new one. If the mount is
// not proven to be the volume's, the error is errLost. The caller gives the handle back.
func (f *files) open(ctx context.Context) (Mount, error) {
	if kept := f.handle; kept != nil {
		if kept.IsMountedAt(f.target) {
			f.handle = nil
			f.kept.Release(1)
			return kept, nil
		}
		if err := f.closeHandle(); err != nil {
			return nil, err
		}
	}
	mnt, err := f.mounts.Reopen(ctx, f.id, f.target)
	switch {
	case errors.Is(err, mount.ErrNotMounted):
		return nil, errLost
	case err != nil:
		return nil, fmt.Errorf("open volume %s at %s: %w", f.id, f.target, err)
	}
	return mnt, nil
}

// giveBack takes a handle back, and adds to err why it could not be closed. The handle is kept until the last superseded generation is
// removed, unless *err says that something failed. Opening one costs as much as a small write, and closing one makes the kernel wait for all
// processors.
func (f *files) giveBack(mnt Mount, err *error) {
	if *err == nil && f.generations.leftover == nil && f.generations.isAnyLeft() && f.kept.TryAcquire(1) {
		f.handle = mnt
		return
	}
	if closeErr := mnt.Close(); closeErr != nil {
		*err = errors.Join(*err, closeErr)
	}
}

// closeHandle closes the kept handle, if there is one.
func (f *files) closeHandle() error {
	kept := f.handle
	if kept == nil {
		return nil
	}
	f.handle = nil
	f.kept.Release(1)
	return kept.Close()
}
