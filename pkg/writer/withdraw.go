package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Withdraw makes dir show what it shows without the files that name one of refused, or of
// which that can't be told: with unnamed that is so of files that name no object. It needs nothing
// but dir: no tree, no pages, and inodes only where there are some. Those of files that stay are not
// touched.
//
// It switches to another generation, which has the other files as hard links; the generation
// before stays until Prune, as after a Write. Those before it go at once. The record stays what it was. If such a generation can't be made, for want of
// inodes or because something is in the way, it removes the files from the present one: a
// reader may then miss a file of the generation that it has begun to read.
//
// Errors, Result and strange entries are as with Write.
func (w *Writer) Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, unnamed bool) (Result, error) {
	return w.withdraw(ctx, dir, refused, unnamed, func(v *withdrawal) error { return v.replaceOrRemove(ctx) })
}

// Withdraw empties the files that a Writer's Withdraw takes away, as Write does with files that
// the tree has no longer. It needs nothing but dir, and no room.
func (w *InPlace) Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, unnamed bool) (Result, error) {
	result, err := w.withdraw(ctx, dir, refused, unnamed, func(v *withdrawal) error { return v.empty() })
	if err == nil {
		_, err = w.dropEmptied(ctx, dir, maxEmptied)
	}
	return result, err
}

// Shows returns which of refs the files of dir name: all of them, if a file may name any.
func (m *memory) Shows(ctx context.Context, dir *os.Root, refs map[volume.Ref]bool) (map[volume.Ref]bool, error) {
	shown, err := m.look(ctx, dir)
	found := map[volume.Ref]bool{}
	if shown != nil {
		for i := range shown.files {
			if e := &shown.files[i]; e.refs != "" {
				namesOf(e.refs, refs, found)
			}
		}
	}
	return found, err
}

// Size returns what the present generation of dir takes, by the measure of Measure, with the files
// that InPlace has emptied.
func (m *memory) Size(ctx context.Context, dir *os.Root) (Footprint, error) {
	shown, err := m.look(ctx, dir)
	if shown == nil {
		return Footprint{}, err
	}
	return shown.footprint(), nil
}

// look returns what dir shows, nil if there is no generation. A fresh scan has no digests.
func (m *memory) look(ctx context.Context, dir *os.Root) (*snapshot, error) {
	if m.shown != nil {
		return m.shown, nil
	}
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	name, err := currentName(int(root.Fd()))
	if name == "" || err != nil {
		return nil, err
	}
	return scan(ctx, int(root.Fd()), name, scanOptions{names: m.names})
}

// withdrawal is one Withdraw that has something to take away.
type withdrawal struct {
	*update
	entries []dirent // of the root, at first
	// gone is the files that go. base has them, and next the others.
	gone []entry
	// known says that base comes from memory, not from a scan.
	known bool
}

// withdraw removes the earlier generations, which may show what is refused too, and calls run with a
// withdrawal, unless no file goes.
func (m *memory) withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, unnamed bool, run func(*withdrawal) error) (Result, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Result{}, err
	}
	defer root.Close()
	known := m.shown
	v := &withdrawal{update: m.update(ctx, root), known: known != nil}
	v.linksOnly = true
	if err := v.find(ctx, known, refused, unnamed); err != nil || v.base == nil {
		return Result{}, err
	}
	v.kept, v.found = nil, time.Time{}
	v.leftover = v.removeLeftovers(v.entries, v.base.generation)
	if len(v.gone) == 0 {
		m.kept, m.found, m.stale = v.kept, v.found, v.leavesStale()
		return Result{}, nil
	}
	m.shown = nil
	err = run(v)
	m.kept, m.found = v.kept, v.found
	m.stale = v.leavesStale() || err != nil && m.stale || errors.Is(err, context.DeadlineExceeded)
	v.result.Generation = v.next.generation
	// What was only scanned is not kept: the next write reads the files again.
	if err == nil && (v.known || v.switched()) {
		m.shown = v.next
	}
	return v.result, err
}

// switched reports whether ..data points at another generation by now.
func (v *withdrawal) switched() bool { return v.next.generation != v.base.generation }

// find finds what there is, and what of it goes.
func (v *withdrawal) find(ctx context.Context, known *snapshot, refused map[volume.Ref]bool, unnamed bool) (err error) {
	if v.entries, err = readDir(v.root); err != nil {
		return fmt.Errorf("list the volume's root: %w", err)
	}
	if v.base, err = v.current(ctx, known); err != nil || v.base == nil {
		return err
	}
	v.hasData = true
	next := *v.base
	next.files, next.links = nil, nil
	v.next, v.tree = &next, &volume.Tree{}
	for i := range v.base.files {
		e := v.base.files[i]
		if e.names(refused) || unnamed && e.refs == "" {
			v.gone = append(v.gone, e)
			continue
		}
		next.files = append(next.files, e)
		v.tree.Files = append(v.tree.Files, volume.File{Path: e.path})
	}
	return nil
}

// replaceOrRemove switches to a generation without the files that go or, if there can't be
// one, removes them from the present generation.
func (v *withdrawal) replaceOrRemove(ctx context.Context) error {
	if err := v.planLinks(v.entries, nil, topNames(v.tree)); err != nil {
		return err
	}
	err := v.replace(ctx)
	if err != nil && ctx.Err() != nil {
		return err
	}
	if err != nil {
		v.next.generation = v.base.generation
		if err := v.removeFiles(); err != nil {
			return err
		}
	} else {
		v.next.irregular, v.next.dirs, v.next.strange = false, nil, nil
	}
	return v.finish()
}

// removeFiles removes the files that go from the present generation. One that can't be
// removed does not keep the others.
func (v *withdrawal) removeFiles() error {
	generation, err := openPath(v.root, v.base.generation)
	if err != nil {
		return fmt.Errorf("open generation %s: %w", v.base.generation, err)
	}
	defer unix.Close(generation)
	var errs []error
	for i := range v.gone {
		if err := dropFile(v.fs, generation, v.gone[i].path); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", v.gone[i].path, err))
			continue
		}
		v.result.Changed = true
	}
	return errors.Join(errs...)
}

// empty empties the files that go. One that can't be emptied does not keep the others.
func (v *withdrawal) empty() error {
	r := &rewrite{update: v.update}
	var err error
	if r.generation, err = openPath(r.root, r.base.generation); err != nil {
		return fmt.Errorf("open generation %s: %w", r.base.generation, err)
	}
	defer unix.Close(r.generation)
	var errs []error
	for i := range v.gone {
		e := &v.gone[i]
		if err := r.do(&job{path: e.path, content: true, had: e.refs}); err != nil {
			errs = append(errs, fmt.Errorf("empty %s: %w", e.path, err))
		}
		r.next.addEmptied(e)
	}
	return errors.Join(errs...)
}
