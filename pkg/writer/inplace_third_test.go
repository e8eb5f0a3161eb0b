package writer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

// TestInPlaceThirdVersion kills one write, and another one of yet another tree, in a
// volume with just the room that Measure asks for. What that leaves takes more than a
// generation, and still the next write has to find its room.
func TestInPlaceThirdVersion(t *testing.T) {
	const step = 6                      // all pairs of kills would take long
	cases := map[string][]*volume.Tree{ // the last two are killed
		"bytes": {
			tree(file("x", "1"), file("y", pages(9, "1"))),
			tree(file("x", pages(9, "2")), file("y", "2")),
			tree(file("x", "3"), file("y", "3"), file("z", pages(8, "3"))),
		},
		"a reserve that is of use in part": {
			tree(file("x", "1"), file("y", pages(9, "1"))),
			tree(file("x", pages(9, "2")), file("y", "2")),
			tree(file("x", pages(5, "3")), file("z", pages(5, "3"))),
		},
		"inodes": {
			tree(file("a/b/c", "1"), file("d", "1")),
			tree(file("e/f/g", "2"), file("h", "2")),
			tree(file("i/k/l", "3"), file("m", "3")),
		},
		"room for a key that comes back": {
			tree(file("a", "1"), file("b", "1"), file("c", "1")),
			tree(file("d", "2"), file("e", "2"), file("f", "2")),
			tree(file("a", "3"), file("b", "3"), file("c", "3")),
			tree(file("g", "4"), file("h", "4"), file("i", "4")),
		},
		"modes": {
			tree(file("d/x", "1"), file("d/y", pages(9, "1"))),
			tree(file("d/x", pages(9, "2")), file("d/y", "2")),
			withDirMode(0o700, tree(withMode(0o600, file("d/x", "3")), file("d/y", "3"), file("z", pages(8, "3")))),
		},
	}
	for name, trees := range cases {
		t.Run(name, func(t *testing.T) {
			second, third := trees[len(trees)-2], trees[len(trees)-1]
			for n, killed := 0, true; killed; n++ {
				for m, again := n%step, true; again; m += step {
					v := newTightVolume(t, trees)
					for _, tr := range trees[:len(trees)-2] {
						_, err := NewInPlace(Options{}).Write(t.Context(), v.root, tr)
						v.must(err)
					}
					killed = v.killAt(n, second)
					inodes := v.inodes()
					again = v.killAt(m, third)
					if _, err := NewInPlace(Options{}).Write(t.Context(), v.root, third); err != nil {
						t.Fatalf("killed at %d and %d: %v", n, m, err)
					}
					v.checkThird(inodes, third)
					if t.Failed() {
						t.Fatalf("killed at %d and %d", n, m)
					}
				}
			}
		})
	}
}

// newTightVolume is a volume that has room for two generations of each of the trees,
// and not more.
func newTightVolume(t *testing.T, trees []*volume.Tree) *testVolume {
	t.Helper()
	var most Footprint
	for _, tr := range trees {
		fp := Measure(tr)
		most.Bytes, most.Inodes = max(most.Bytes, fp.Bytes), max(most.Inodes, fp.Inodes)
	}
	const roots = 2 // the volume's, and the file system's above it
	return newSmallVolume(t, 2*int(most.Bytes)/os.Getpagesize(), 2*int(most.Inodes)+roots)
}

// killAt has a new InPlace write tree and kills it before operation n. It returns
// whether there was such an operation.
func (v *testVolume) killAt(n int, tree *volume.Tree) bool {
	v.Helper()
	w, calls := NewInPlace(Options{}), 0
	w.fs = stepped{w.fs, func(string, string) error {
		if calls++; calls <= n {
			return nil
		}
		return errCrash
	}}
	_, err := w.Write(v.Context(), v.root, tree)
	if killed := calls > n; killed != (err != nil) {
		v.Fatalf("Write to be killed at %d of %d: %v", n, calls, err)
	}
	return calls > n
}

// checkThird fails unless the volume shows tree, with the inodes of before for files
// with content, and besides that only empty files, and a new InPlace has no file to
// write.
func (v *testVolume) checkThird(before map[string]uint64, tree *volume.Tree) {
	v.Helper()
	shown := map[string]bool{}
	for _, f := range tree.Files {
		shown[f.Path] = true
		content, err := os.ReadFile(filepath.Join(v.path, f.Path))
		if err != nil || string(content) != string(f.Data) {
			v.Errorf("%s has %d bytes, want %d: %v", f.Path, len(content), len(f.Data), err)
		}
		if mode := v.lstat(filepath.Join(dataName, f.Path)).Mode(); mode != f.Mode {
			v.Errorf("%s has mode %v", f.Path, mode)
		}
	}
	for path, inode := range v.inodes() {
		st := v.inode(filepath.Join(dataName, path))
		if !shown[path] && st.Size > 0 || st.Blocks*blockSize > wholePages(st.Size) {
			v.Errorf("%s has %d bytes in %d blocks", path, st.Size, st.Blocks)
		}
		if old := before[path]; shown[path] && old != 0 && old != inode {
			v.Errorf("%s has another inode", path)
		}
	}
	for _, name := range v.names() {
		if _, err := os.Stat(filepath.Join(v.path, name)); err != nil {
			v.Errorf("link %s: %v", name, err)
		}
	}
	// A kill may have left directories without a file, to be removed one by one.
	if result, err := NewInPlace(Options{}).Write(v.Context(), v.root, tree); err != nil || result.Files > 0 {
		v.Errorf("Write again = %+v, %v", result, err)
	}
}

// TestInPlaceThirdVersionFails has too little room also after what is there was cut
// down: the Result says so.
func TestInPlaceThirdVersionFails(t *testing.T) {
	before, next := tree(file("a", pages(9, "1"))), tree(file("a", "2"), file("b", pages(8, "2")), file("c", ""))
	v := newTightVolume(t, []*volume.Tree{before, next})
	v.rewrite(NewInPlace(Options{}), before)
	other := filepath.Join(v.path, "not of the writer's making")
	v.must(os.WriteFile(other, []byte(pages(9, "x")), 0o600))
	w := NewInPlace(Options{})
	kernel := w.fs
	w.fs = stepped{kernel, func(op, _ string) error {
		if op == "create" {
			return unix.ENOSPC
		}
		return nil
	}}
	result, err := w.Write(t.Context(), v.root, next)
	if want := (Result{Changed: true, Files: 1, Bytes: 1}); !errors.Is(err, unix.ENOSPC) || result != want {
		t.Errorf("Write = %+v, %v, want %+v, ENOSPC", result, err, want)
	}
	v.must(os.Remove(other))
	w.fs = kernel
	_, err = w.Write(t.Context(), v.root, next)
	v.must(err)
	v.checkThird(v.inodes(), next)
}

// TestInPlaceTooFewDescriptors has opening fail for a moment, at each place in turn
// where a write may be cancelled: before each file that is read among others. Nothing
// healthy is replaced for that.
func TestInPlaceTooFewDescriptors(t *testing.T) {
	for _, next := range []*volume.Tree{
		tree(file("a", "1"), file("d/b", "2"), file("d/e/c", "3")),
		tree(file("a", "4"), file("d/b", "5"), file("d/e/c", "6")),
	} {
		v := newVolume(t)
		v.rewrite(NewInPlace(Options{}), tree(file("a", "1"), file("d/b", "2"), file("d/e/c", "3")))
		inodes, failed := v.inodes(), 0
		for n, reached := 1, true; reached; n++ {
			ctx := &tooFewDescriptors{Context: t.Context(), at: n}
			_, err := NewInPlace(Options{}).Write(ctx, v.root, next)
			reached = ctx.calls >= n
			v.must(ctx.limit(false))
			if err != nil && !errors.Is(err, unix.EMFILE) {
				t.Errorf("call %d: %v, want EMFILE", n, err)
			}
			if err != nil {
				failed++
			}
			if got := v.inodes(); fmt.Sprint(got) != fmt.Sprint(inodes) {
				t.Fatalf("call %d: inodes %v, want %v", n, got, inodes)
			}
		}
		if failed < 5 {
			t.Errorf("%d writes failed, want one for each entry at least", failed)
		}
		v.rewrite(NewInPlace(Options{}), next)
	}
}

// tooFewDescriptors is a context that is asked before each step whether it is done. It
// lets the process open nothing more from one such question to the next.
type tooFewDescriptors struct {
	context.Context
	calls, at int
	old       unix.Rlimit
}

func (c *tooFewDescriptors) Err() error {
	c.calls++
	if c.calls == c.at || c.calls == c.at+1 {
		if err := c.limit(c.calls == c.at); err != nil {
			return err
		}
	}
	return c.Context.Err()
}

// limit sets the limit on descriptors to none, or back if that was done.
func (c *tooFewDescriptors) limit(on bool) error {
	switch {
	case on:
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &c.old); err != nil {
			return err
		}
		return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: c.old.Max})
	case c.old.Max == 0:
		return nil
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &c.old)
}
