package writer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// Withdraw writes what dir shows, without the files that name a refused object or whose objects are not known. record becomes the record.
// All earlier generations are removed at once, because they may show refused objects too. It needs only dir. If there is no inode left for
// another generation, it removes the files from the present one: a reader may then miss a file of the generation that it has begun to read.
// With InPlace the files are emptied. Errors are those of Write.
func (w *Writer) Withdraw(ctx context.Context, dir *os.Root, refused map[volume.Ref]bool, record string) (Result, error) {
	tree, gone, err := w.treeWithout(dir, refused)
	if tree == nil || err != nil {
		return Result{}, err
	}
	tree.Record = record
	result, err := w.Write(ctx, dir, tree)
	if errors.Is(err, unix.ENOSPC) && !result.Changed && !w.opts.InPlace {
		if err = w.remove(dir, gone); err == nil {
			result, err = w.Write(ctx, dir, tree)
			result.Changed = true
		}
	}
	if err != nil {
		return result, err
	}
	_, err = Prune(dir, nil, w.opts.Removing)
	return result, err
}

// treeWithout returns a tree that keeps what dir shows, apart from the files that go. It returns nil if dir shows nothing.
func (w *Writer) treeWithout(dir *os.Root, refused map[volume.Ref]bool) (tree *volume.Payload, gone []string, err error) {
	generation, err := openPresent(dir)
	if generation == noDescriptor || err != nil {
		return nil, nil, err
	}
	defer unix.Close(generation)
	a, err := statAttrs(generation)
	if err != nil {
		return nil, nil, fmt.Errorf("stat the present generation: %w", err)
	}
	tree = &volume.Payload{DirMode: fs.FileMode(a.mode).Perm(), UID: a.uid, GID: a.gid}
	if a.mode&unix.S_ISGID != 0 {
		tree.DirMode |= fs.ModeSetgid
	}
	at := newDirs(generation)
	defer at.close()
	err = walk(generation, ".", func(p string, e fs.DirEntry) error {
		stays := false
		if e.Type().IsRegular() {
			if stays, err = w.isKept(at, p, refused); err != nil {
				return fmt.Errorf("which objects %s shows: %w", p, err)
			}
		}
		if stays {
			tree.Files = append(tree.Files, volume.File{Path: p, Keep: true})
		} else {
			gone = append(gone, p)
		}
		return nil
	})
	slices.SortFunc(tree.Files, func(a, b volume.File) int { return strings.Compare(a.Path, b.Path) })
	return tree, gone, err
}

// isKept reports whether a file names objects, and no refused one.
func (w *Writer) isKept(at *dirs, p string, refused map[volume.Ref]bool) (bool, error) {
	dir, last, err := at.at(p)
	if err != nil {
		return false, err
	}
	fd, err := openAt(dir, last, unix.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	attribute, err := w.opts.readRefs(fd)
	if err != nil {
		return false, err
	}
	named, ok := decodeRefs(attribute)
	return ok && !slices.ContainsFunc(named, func(ref volume.Ref) bool { return refused[ref] }), nil
}

// remove removes files from the present generation itself. A failure for one file does not stop the others.
func (w *Writer) remove(dir *os.Root, gone []string) error {
	w.memory = memory{}
	generation, err := openPresent(dir)
	if generation == noDescriptor || err != nil {
		return err
	}
	defer unix.Close(generation)
	for _, p := range gone {
		w.opts.step("remove a file")
		err = errors.Join(err, dropFile(generation, p))
	}
	return err
}

// dropFile removes a file of a generation, and the directories above it that become empty.
func dropFile(generation int, p string) error {
	at := newDirs(generation)
	defer at.close()
	dir, last, err := at.at(p)
	if err == nil {
		err = unix.Unlinkat(dir, last, 0)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", p, err)
	}
	for _, name := range parents(p) {
		dir, last, err := at.at(name)
		if err != nil || unix.Unlinkat(dir, last, unix.AT_REMOVEDIR) != nil {
			break // it is not empty
		}
	}
	return nil
}

// parents returns the directories above a path, nearest first.
func parents(p string) (all []string) {
	for p = path.Dir(p); p != "."; p = path.Dir(p) {
		all = append(all, p)
	}
	return all
}
