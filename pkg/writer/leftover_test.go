package writer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// held is the name of a file that can't be removed, as one that something is mounted on.
const held = "held"

// holding returns a fileSystem that does not remove files named held while *on.
func holding(under fileSystem, on *bool) fileSystem {
	return stepped{under, func(op, name string) error {
		if *on && op == "unlink" && name == held {
			return unix.EBUSY
		}
		return nil
	}}
}

// leave makes a generation as an interrupted write leaves it, with a file that is held.
func (v *testVolume) leave() {
	v.Helper()
	v.must(os.MkdirAll(filepath.Join(v.path, leftover, "x/y"), 0o755))
	for _, name := range []string{"a", "x/" + held, "x/y/secret", "z"} {
		v.must(os.WriteFile(filepath.Join(v.path, leftover, name), []byte("old"), 0o600))
	}
}

// left returns the paths of the files and directories in the leftover.
func (v *testVolume) left() []string {
	v.Helper()
	var paths []string
	v.must(fs.WalkDir(os.DirFS(v.path), leftover, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, strings.TrimPrefix(path, leftover))
		return err
	}))
	return paths
}

// TestALeftoverThatStays has a generation that can't be removed. Updates go on beside it, all
// else of it goes, and it is known that it is there until it has gone.
func TestALeftoverThatStays(t *testing.T) {
	for name, newWriter := range map[string]func(on *bool) treeWriter{
		"Atomic": func(on *bool) treeWriter {
			w := New(Options{})
			w.fs = holding(w.fs, on)
			return w
		},
		"InPlace": func(on *bool) treeWriter {
			w := NewInPlace(Options{})
			w.fs = holding(w.fs, on)
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, on := newVolume(t), true
			v.write(New(Options{}), tree(file("a", "1")))
			v.leave()
			w := newWriter(&on)
			for _, content := range []string{"1", "2", "3", "3"} { // the first shows already, the last again
				want := tree(file("a", content))
				if _, err := w.Write(t.Context(), v.root, want); err != nil {
					t.Fatalf("Write beside a leftover: %v", err)
				}
				if !w.Stale() {
					t.Error("nobody knows of the leftover after a write")
				}
				err := w.Prune(v.Context(), v.root, time.Now())
				if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "remove "+leftover+": x: "+held+": ") || !w.Stale() {
					t.Errorf("Prune = %v, stale: %v", err, w.Stale())
				}
				v.check(want, leftover)
				if got, want := v.left(), []string{"", "/x", "/x/" + held}; !slices.Equal(got, want) {
					t.Errorf("left are %q, want %q", got, want)
				}
			}
			on = false
			v.prune(w)
			v.check(tree(file("a", "3")))
			v.write(w, tree(file("a", "4")))
		})
	}
}

// TestALeftoverTakesRoom has too little room for a tree beside a leftover that stays: all files
// are as they were, and the error tells of both.
func TestALeftoverTakesRoom(t *testing.T) {
	before := tree(file("a", pages(3, "1")), file("b", pages(1, "1")))
	after := tree(file("a", "2"), file("b", pages(4, "2"))) // fits twice, but for the leftover
	for name, newWriter := range map[string]func() (treeWriter, *memory){
		"Atomic":  func() (treeWriter, *memory) { w := New(Options{}); return w, &w.memory },
		"InPlace": func() (treeWriter, *memory) { w := NewInPlace(Options{}); return w, &w.memory },
	} {
		t.Run(name, func(t *testing.T) {
			v, on := newSmallVolume(t, 10, 40), true
			w, m := newWriter()
			_, err := w.Write(t.Context(), v.root, before)
			v.must(err)
			v.must(os.Mkdir(filepath.Join(v.path, leftover), 0o755))
			v.must(os.WriteFile(filepath.Join(v.path, leftover, held), []byte(pages(5, "x")), 0o600))
			freePages, freeInodes := v.free()
			m.fs, m.shown = holding(m.fs, &on), nil
			for range 2 {
				result, err := w.Write(t.Context(), v.root, after)
				if !errors.Is(err, unix.ENOSPC) || !errors.Is(err, unix.EBUSY) || result.Changed || !w.Stale() {
					t.Errorf("Write = %+v, %v, stale: %v; want ENOSPC, and why a generation stays", result, err, w.Stale())
				}
				v.check(before, leftover)
				if p, i := v.free(); p != freePages || i != freeInodes {
					t.Errorf("%d pages and %d inodes are free, %d and %d were", p, i, freePages, freeInodes)
				}
			}
			on = false
			_, err = w.Write(t.Context(), v.root, after)
			v.must(err)
			v.prune(w)
			v.check(after)
		})
	}
}
