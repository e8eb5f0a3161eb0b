package writer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/refvol/refvol/pkg/volume"
)

func withMode(mode fs.FileMode, f volume.File) volume.File {
	f.Mode = mode
	return f
}

func TestWriteOnce(t *testing.T) {
	binary := string([]byte{0, 1, 0xff, 0xfe, '\n', 0})
	deep := strings.Repeat("d/", 300) + "f"
	cases := map[string]*volume.Tree{
		"empty":             tree(),
		"one file":          tree(file("a", "1")),
		"empty content":     tree(file("a", "")),
		"binary content":    tree(file("a", binary)),
		"large content":     tree(file("a", strings.Repeat("0123456789", 1<<17))),
		"dotfiles":          tree(file(".a", "1"), file(".b/.c", "2"), file(".b/..c", "3")),
		"modes":             tree(withMode(0o400, file("a", "1")), withMode(0o440, file("b", "2")), withMode(0o777, file("c", "3"))),
		"directories":       tree(file("a/b", "1"), file("a/c/d", "2"), file("a/c/e", "3"), file("f", "4"), file("a-b", "5")),
		"neighbours":        tree(file("a/x", "1"), file("a-/x", "2"), file("a0", "3"), file("a.b/x/y", "4")),
		"dots inside":       tree(file("a..b", "1"), file("a/..b", "2"), file("a/...", "3")),
		"deep":              tree(file(deep, "1")),
		"longest name":      tree(file(strings.Repeat("n", 255), "1")),
		"spaces and quotes": tree(file("a b", "1"), file(`"`, "2"), file("\n", "3"), file("ü", "4")),
	}
	for name, tree := range cases {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			before := openDescriptors(t)
			result := v.write(New(Options{}), tree)
			if got := openDescriptors(t); got != before {
				t.Errorf("%d descriptors are open, %d before", got, before)
			}
			want := Result{Changed: true, Generation: result.Generation, Files: len(tree.Files), Bytes: tree.Size()}
			if result != want {
				t.Errorf("Result = %+v, want %+v", result, want)
			}
		})
	}
}

// transitions are pairs of trees that a volume goes from and to, used by several
// tests.
var transitions = map[string]struct{ from, to *volume.Tree }{
	"value changed":           {tree(file("a", "1"), file("b", "2")), tree(file("a", "1"), file("b", "3"))},
	"value shorter":           {tree(file("a", "long value")), tree(file("a", "s"))},
	"key added":               {tree(file("a", "1")), tree(file("a", "1"), file("b", "2"))},
	"key removed":             {tree(file("a", "1"), file("secret", "2")), tree(file("a", "1"))},
	"all removed":             {tree(file("a", "1"), file("b/c", "2")), tree()},
	"from empty":              {tree(), tree(file("a", "1"), file("b/c", "2"))},
	"all other":               {tree(file("a", "1"), file("b/c", "2")), tree(file("x", "1"), file("y/c", "2"))},
	"directory added":         {tree(file("a/b", "1")), tree(file("a/b", "1"), file("a/c/d", "2"), file("e/f", "3"))},
	"directory removed":       {tree(file("a/b", "1"), file("a/c/d", "2"), file("e/f", "3")), tree(file("a/b", "1"))},
	"file becomes directory":  {tree(file("a", "1"), file("k", "same")), tree(file("a/b", "1"), file("k", "same"))},
	"directory becomes file":  {tree(file("a/b", "1"), file("k", "same")), tree(file("a", "1"), file("k", "same"))},
	"mode alone":              {tree(file("a", "1"), file("b", "2")), tree(withMode(0o400, file("a", "1")), file("b", "2"))},
	"mode of the directories": {tree(file("a/b", "1")), withDirMode(0o750, tree(file("a/b", "1")))},
	"setgid":                  {tree(file("a/b", "1")), withDirMode(0o750|fs.ModeSetgid, tree(file("a/b", "1")))},
	"contents swapped":        {tree(file("a", "1"), file("b", "2")), tree(file("a", "2"), file("b", "1"))},
}

func withDirMode(mode fs.FileMode, tree *volume.Tree) *volume.Tree {
	tree.DirMode = mode
	return tree
}

// TestUpdate takes each transition there and back, with the Writer that wrote
// the first tree and with one that has to read it.
func TestUpdate(t *testing.T) {
	for name, tt := range transitions {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/restart=%v", name, restart), func(t *testing.T) {
				v := newVolume(t)
				w := New(Options{})
				for i, tree := range []*volume.Tree{tt.from, tt.to, tt.from, tt.to} {
					if restart {
						w = New(Options{})
					}
					if result := v.write(w, tree); !result.Changed {
						t.Errorf("write %d: Changed is false", i)
					}
				}
			})
		}
	}
}

func TestUnchanged(t *testing.T) {
	fresh := func() *volume.Tree {
		return tree(file("a", "1"), file("empty", ""), withMode(0o400, file("c/d", strings.Repeat("x", 5000))))
	}
	closed, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	closed.Close() // any I/O on it fails

	t.Run("same memory", func(t *testing.T) {
		v, w, tree := newVolume(t), New(Options{}), fresh()
		first := v.write(w, tree)
		result, err := w.Write(t.Context(), closed, tree)
		if want := (Result{Generation: first.Generation}); err != nil || result != want {
			t.Errorf("Write = %+v, %v, want %+v", result, err, want)
		}
	})
	t.Run("other memory", func(t *testing.T) {
		v, w := newVolume(t), New(Options{})
		first := v.write(w, fresh())
		for range 2 {
			result, err := w.Write(t.Context(), closed, fresh())
			if want := (Result{Generation: first.Generation}); err != nil || result != want {
				t.Errorf("Write = %+v, %v, want %+v", result, err, want)
			}
		}
	})
	t.Run("no owner wanted", func(t *testing.T) {
		v, w, tree := newVolume(t), New(Options{}), fresh()
		first := v.write(w, tree)
		tree.UID, tree.GID = volume.NoOwner, volume.NoOwner
		result, err := w.Write(t.Context(), closed, tree)
		if want := (Result{Generation: first.Generation}); err != nil || result != want {
			t.Errorf("Write = %+v, %v, want %+v", result, err, want)
		}
	})
	t.Run("restart", func(t *testing.T) {
		v := newVolume(t)
		first := v.write(New(Options{}), fresh())
		w := newStepped(func(op, name string) error {
			return fmt.Errorf("unexpected %s %s", op, name)
		})
		if result, want := v.write(w, fresh()), (Result{Generation: first.Generation}); result != want {
			t.Errorf("Result = %+v, want %+v", result, want)
		}
		if _, err := w.Write(t.Context(), closed, fresh()); err != nil {
			t.Errorf("the Writer did not learn what it read: %v", err)
		}
	})
}

func TestSameMemoryOtherLength(t *testing.T) {
	v, w, data := newVolume(t), New(Options{}), []byte("0123456789")
	for _, n := range []int{10, 5, 0, 10} {
		v.write(w, tree(volume.File{Path: "a", Data: data[:n], Mode: 0o644}))
	}
}

// TestOpenFileKeepsContent holds a file open over an update.
func TestOpenFileKeepsContent(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "old")))
	f, err := os.Open(filepath.Join(v.path, "a"))
	v.must(err)
	defer f.Close()
	v.write(w, tree(file("a", "new")))
	var buf [8]byte
	if n, _ := f.Read(buf[:]); string(buf[:n]) != "old" {
		t.Errorf("read %q, want old", buf[:n])
	}
}

func TestRootMode(t *testing.T) {
	v := newVolume(t)
	v.must(os.Chmod(v.path, 0o700))
	first := v.write(New(Options{}), tree(file("a", "1"))) // write checks the mode
	v.must(os.Chmod(v.path, 0o700))
	result := v.write(New(Options{}), tree(file("a", "1")))
	if want := (Result{Generation: first.Generation}); result != want {
		t.Errorf("Result = %+v, want %+v: only the root differed", result, want)
	}
}

func TestGenerationName(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 789, time.FixedZone("", 3600))
	v := newVolume(t)
	result := v.write(New(Options{Now: func() time.Time { return now }}), tree())
	if !strings.HasPrefix(result.Generation, "..2026_02_03_03_05_06.") || len(result.Generation) != 31 {
		t.Errorf("generation %q", result.Generation)
	}
	for name, want := range map[string]bool{
		result.Generation:                 true,
		"..2016_02_01_15_04_05.12345678":  true,
		"..2016_02_01_15_04_05.1":         true,
		"..2016_02_01_15_04_05.":          false,
		"..2016_02_01_15_04_05":           false,
		"..2016_02_01_15_04_05.1x":        false,
		"..2016_02_01_15_04_05.1/a":       false,
		"..2016_13_01_15_04_05.1":         false,
		"..2016-02-01-15-04-05.1":         false,
		"2016_02_01_15_04_05.12345678":    false,
		"..data":                          false,
		"..data_tmp":                      false,
		"..":                              false,
		"../2016_02_01_15_04_05.12345678": false,
	} {
		if got := isGeneration(name); got != want {
			t.Errorf("isGeneration(%q) = %v", name, got)
		}
	}
}

func TestGenerationNameTaken(t *testing.T) {
	taken := 2
	w := newStepped(func(op, _ string) error {
		if op == "mkdir" && taken > 0 {
			taken--
			return unix.EEXIST
		}
		return nil
	})
	newVolume(t).write(w, tree(file("a", "1")))

	w = newStepped(func(op, _ string) error { return unix.EEXIST })
	if _, err := w.Write(t.Context(), newVolume(t).root, tree()); !errors.Is(err, unix.EEXIST) {
		t.Errorf("Write = %v, want EEXIST", err)
	}
}

func TestDirectoryMustExist(t *testing.T) {
	v := newVolume(t)
	v.must(os.Remove(v.path))
	_, err := New(Options{}).Write(t.Context(), v.root, tree(file("a", "1")))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Write = %v, want ErrNotExist", err)
	}
	v.root.Close()
	_, err = New(Options{}).Write(t.Context(), v.root, tree(file("a", "1")))
	if !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Write = %v, want ErrClosed", err)
	}
}

func TestCancelled(t *testing.T) {
	before, after := tree(file("a", "1"), file("b", "2")), tree(file("a", "1"), file("b", "3"), file("c", "4"))
	for _, op := range []string{"mkdir", "create", "chmod", "symlink", "statfs"} {
		t.Run(op, func(t *testing.T) {
			v, w := newVolume(t), New(Options{})
			v.write(w, before)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			kernel := w.fs
			w.fs = stepped{kernel, func(current, name string) error {
				if ctx.Err() != nil && (current == "create" || current == "link" || current == "rename") {
					t.Errorf("%s %s after the end", current, name)
				}
				if current == op {
					cancel()
				}
				return nil
			}}
			result, err := w.Write(ctx, v.root, after)
			if !errors.Is(err, context.Canceled) || result != (Result{}) {
				t.Errorf("Write = %+v, %v, want context.Canceled", result, err)
			}
			v.check(before)
			w.fs = kernel
			v.write(w, after)
		})
	}
	t.Run("reading", func(t *testing.T) {
		v := newVolume(t)
		v.write(New(Options{}), before)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := New(Options{}).Write(ctx, v.root, before); !errors.Is(err, context.Canceled) {
			t.Errorf("Write = %v, want context.Canceled", err)
		}
	})
}
