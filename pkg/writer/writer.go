// Package writer makes a directory show a tree of files.
//
// It owns the layout inside a volume: the generations, the ..data link that
// chooses one of them, the links that users see, and the repair of whatever an
// interrupted write left. Everything it does is relative to the directory handle
// that it is given. It must not know where the content comes from, how the
// directory is mounted, or who reads it. Contents never get into its errors.
//
// The layout is the one of the kubelet's own volumes:
//
//	..2006_01_02_15_04_05.123456789/   a generation: the files themselves
//	..data -> ..2006_01_02_15_04_05.123456789
//	key -> ..data/key
//	conf -> ..data/conf
//
// A file that shows an object that needs consent has an extended attribute that names it,
// from before it becomes visible, so that Withdraw can take it away without knowing anything
// else.
//
// There are two writers, for two kinds of readers.
//
// With Writer, readers see all of one version or all of the next. A generation is
// never changed once ..data points at it, but by a Withdraw that can't make another. A reader that opens ..data once, and then
// opens files relative to that handle, never mixes two generations. Such a reader,
// and one that the kernel has led halfway through ..data, may still be at work when
// ..data switches: so a generation stays until Prune, unless there is no room for it, or eight
// others were superseded since.
//
// With InPlace, whoever holds a file sees each change of it, as a container does
// that mounts one key with subPath: that binds the file itself, and never follows
// ..data again. There is one generation for ever, and a change rewrites the files
// in it. A reader may see a file half-written, or files of two versions. The file of
// a key that goes stays, empty, so that whoever holds it sees the key come back.
package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

// Options configures a Writer or an InPlace. The zero value is valid.
type Options struct {
	// Now gives the time that names a generation; time.Now if nil. Nothing but
	// the name depends on it.
	Now func() time.Time
	// AttributePrefix starts the names of extended attributes, as "trusted.refvol." does.
	// Without one no file may name an object, and no record may be kept.
	AttributePrefix string
}

// Writer writes one volume, over and over, a whole generation at a time. It
// remembers digests of what it last wrote, never the content, so that an unchanged
// tree costs no system call. It is for use by one goroutine at a time, and for one
// directory during its life.
type Writer struct{ memory }

// New returns a Writer that knows nothing yet of the directory: its first Write
// reads the files that are there.
func New(opts Options) *Writer {
	w := &Writer{memory: newMemory(opts)}
	w.stale, w.found = true, time.Now() // another process may have been killed before it pruned
	return w
}

// Result tells what a Write did.
type Result struct {
	// Changed is true when ..data was switched to a new generation or, of InPlace,
	// when anything at all was changed of what users see.
	Changed bool
	// Generation is the name of the generation that ..data points at.
	Generation string
	// Files is how many files were written, those that InPlace emptied among them,
	// and Bytes the length of their contents in bytes; Linked is how many were
	// hard-linked from the generation before, as nothing about them changed.
	Files, Linked int
	Bytes         int64
}

// Write makes dir show tree, and puts right whatever it finds amiss there on the
// way. The generation carries the tree's Record, so that one rename changes the files and
// what is recorded of them; where nothing but the Record differs, the present generation
// gets the new one. When this Writer knows that dir shows tree already, it does no I/O.
//
// The generation before stays until Prune. Of more than eight the oldest goes; where there is no room
// for the new generation, earlier ones go first, the oldest before the others.
// One that can't be removed, as one with a file that something is
// mounted on, is no error: Stale tells of it, and Prune says why.
//
// An error before the switch leaves dir showing what it showed, complete, and
// nothing of the new generation. After the switch only the links of new names and
// the removal of what is old can fail; then the error comes with a Result whose
// Changed is true. After any error the next Write looks at the directory afresh
// and repairs it. A full file system is unix.ENOSPC to errors.Is, a cancelled ctx
// is ctx.Err(). Once a deadline of ctx has passed, nothing more is made or removed: part of
// the new generation may then stay for the next Write or Prune.
//
// The root of dir gets the tree's directory mode and owner too. Entries in it
// that are not of the writer's making stay, except where a link has to be.
func (w *Writer) Write(ctx context.Context, dir *os.Root, tree *volume.Tree) (Result, error) {
	return w.write(ctx, dir, tree, func(u *update, known *snapshot) error {
		err := u.run(ctx, known)
		for len(u.kept) > maxKept {
			u.dropOldest()
		}
		return err
	})
}

// update is one Write that has to touch the directory.
type update struct {
	fs    fileSystem
	root  int
	now   func() time.Time
	names attributeNames
	tree  *volume.Tree
	// linksOnly says that tree is without contents: every file is to be linked.
	linksOnly bool
	// base is the generation that ..data points at when the update starts, nil
	// if there is none.
	base *snapshot
	// hasData says that there is an entry ..data then, whatever it is.
	hasData bool
	// next is what the directory shows when the update is done.
	next *snapshot
	// links is what has to be done to the links that users see.
	links  links
	result Result
	// leftover is why an earlier generation is still there that is not kept, nil if none is. It
	// stops no update: an update only needs enough room.
	leftover error
	// kept and found are those of the memory.
	kept  []superseded
	found time.Time
}

func (u *update) run(ctx context.Context, known *snapshot) error {
	entries, err := u.begin(ctx, known)
	if err != nil {
		return err
	}
	return u.show(ctx, entries, known)
}

// begin finds out what ..data points at, removes what is left of interrupted
// writes, and returns the entries of the root as they were before that.
func (u *update) begin(ctx context.Context, known *snapshot) ([]dirent, error) {
	entries, err := readDir(u.root)
	if err != nil {
		return nil, fmt.Errorf("list the volume's root: %w", err)
	}
	u.hasData = slices.ContainsFunc(entries, func(e dirent) bool { return e.name == dataName })
	if u.hasData {
		if u.base, err = u.current(ctx, known); err != nil {
			return nil, err
		}
	}
	current := ""
	if u.base != nil {
		current = u.base.generation
		u.keepFound(entries, current)
	}
	u.leftover = u.removeLeftovers(entries, current)
	return entries, nil
}

// show makes ..data and the links show the tree: in the present generation if that
// is just so, else in a new one.
func (u *update) show(ctx context.Context, entries []dirent, known *snapshot) error {
	if err := u.planLinks(entries, known, topNames(u.tree)); err != nil {
		return err
	}
	if u.base != nil && u.next.sameAs(u.base) {
		u.next.generation = u.base.generation
		if err := u.setRoot(); err != nil {
			return err
		}
		if err := u.withRoom(u.renewRecord); err != nil {
			return err
		}
	} else if err := u.withRoom(func() error { return u.replace(ctx) }); err != nil {
		return err
	}
	u.result.Generation = u.next.generation
	return u.finish()
}

// replace builds the next generation beside the present one and switches to it.
// If it fails, nothing of the next generation is left, unless a deadline has passed.
func (u *update) replace(ctx context.Context) (err error) {
	if u.next.generation, err = u.newGeneration(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			u.result = Result{}
			err = errors.Join(err, u.remove(dataTmpName), u.remove(u.next.generation))
		}
	}()
	if err := u.fill(ctx); err != nil {
		return err
	}
	if err := u.setRoot(); err != nil {
		return err
	}
	if u.hasData {
		if err := u.point(dataTmpName); err != nil {
			return err
		}
	}
	if err := u.reserveLinks(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("switch %s: %w", dataName, err)
	}
	if err := u.switchData(); err != nil {
		return err
	}
	u.result.Changed = true
	u.supersede()
	return nil
}

// switchData makes ..data point at the next generation: ..data_tmp takes the place of
// what is there, or, as that is less work, ..data is made where nothing is.
func (u *update) switchData() error {
	if !u.hasData {
		return u.point(dataName)
	}
	if err := u.fs.rename(u.root, dataTmpName, dataName); err != nil {
		return fmt.Errorf("rename %s to %s: %w", dataTmpName, dataName, err)
	}
	return nil
}

// point makes a link to the next generation.
func (u *update) point(name string) error {
	if err := u.fs.symlink(u.next.generation, u.root, name); err != nil {
		return fmt.Errorf("create link %s: %w", name, err)
	}
	return nil
}

// finish makes the links agree with what ..data shows now. One step's failure does
// not stop the other.
func (u *update) finish() error {
	return errors.Join(u.createLinks(), u.dropLinks())
}

// leavesStale reports whether there is an earlier generation after the update.
func (u *update) leavesStale() bool { return len(u.kept) > 0 || u.leftover != nil }
