package writer

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// DropOldest removes from dir the earlier generation that was superseded first, though readers may
// not be done with it, for a caller that needs its room. It returns false if none is kept; then there
// is nothing to free. It may be called until then.
func (w *Writer) DropOldest(ctx context.Context, dir *os.Root) (bool, error) {
	since := w.StaleSince()
	if !w.stale || since.IsZero() {
		return false, nil
	}
	return true, w.Prune(ctx, dir, since)
}

// DropOldest removes from dir the files that were emptied, as far as this InPlace knows of them, for a
// caller that needs their room. Whoever holds one of them doesn't see its key come back. It returns
// false if there are none.
func (w *InPlace) DropOldest(ctx context.Context, dir *os.Root) (bool, error) {
	return w.dropEmptied(ctx, dir, 0)
}

// dropEmptied removes all but the newest files that were emptied.
func (w *InPlace) dropEmptied(ctx context.Context, dir *os.Root, newest int) (bool, error) {
	known := w.shown
	if known == nil || len(known.emptied) <= newest {
		return false, nil
	}
	root, err := openRoot(dir)
	if err != nil {
		return false, err
	}
	defer root.Close()
	next := *known
	r := &rewrite{update: w.update(ctx, root), known: known}
	r.base, r.next, r.tree, r.linksOnly = known, &next, &volume.Tree{}, true
	for i := range known.files {
		r.tree.Files = append(r.tree.Files, volume.File{Path: known.files[i].path})
	}
	r.spent = next.forgetEmptied(newest)
	w.shown = nil
	if r.entries, err = readDir(r.root); err != nil {
		return true, fmt.Errorf("list the volume's root: %w", err)
	}
	if r.generation, err = openPath(r.root, known.generation); err != nil {
		return true, fmt.Errorf("open generation %s: %w", known.generation, err)
	}
	defer unix.Close(r.generation)
	if err := r.dropSpent(); err != nil {
		return true, err
	}
	w.shown = r.next
	return true, nil
}
