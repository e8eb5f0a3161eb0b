package writer

import (
	"bytes"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func withMode(mode fs.FileMode, f volume.File) volume.File {
	f.Mode = mode
	return f
}

func TestWriteOnce(t *testing.T) {
	binary := string([]byte{0, 1, 0xff, 0xfe, '\n', 0})
	deep := strings.Repeat("d/", 300) + "f"
	cases := map[string]*volume.Payload{
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
			if again := v.write(New(Options{}), tree); again.Changed {
				t.Errorf("a new process wrote it again: %+v", again)
			}
		})
	}
}

// transitions are pairs of trees: a volume goes from one to the other.
var transitions = map[string]struct{ from, to *volume.Payload }{
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

func withDirMode(mode fs.FileMode, tree *volume.Payload) *volume.Payload {
	tree.DirMode = mode
	return tree
}

// TestUpdate does each transition in both directions, with the Writer that wrote the first tree and with one that must read it. In place,
// the generation stays.
func TestUpdate(t *testing.T) {
	for name, tt := range transitions {
		for _, restart := range []bool{false, true} {
			for _, o := range []Options{{}, {InPlace: true}} {
				t.Run(fmt.Sprintf("%s/restart=%v/InPlace=%v", name, restart, o.InPlace), func(t *testing.T) {
					v, w, generation := newVolume(t), New(o), ""
					write := v.write
					if o.InPlace {
						write = v.rewrite
					}
					for i, tree := range []*volume.Payload{tt.from, tt.to, tt.from, tt.to} {
						if restart {
							w = New(o)
						}
						result := write(w, tree)
						if !result.Changed || o.InPlace && i > 0 && result.Generation != generation {
							t.Errorf("write %d: Result = %+v, generation before %s", i, result, generation)
						}
						generation = result.Generation
					}
				})
			}
		}
	}
}

// TestAnotherWriter: a writer does not trust what it remembers after another one has written.
func TestAnotherWriter(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "first")))
	v.write(New(Options{}), tree(file("a", "second")))
	v.write(w, tree(file("a", "first")))
}

// TestLinkedBesideNewDirectory: a directory that is missing does not hide its parent's other files from a new process.
func TestLinkedBesideNewDirectory(t *testing.T) {
	v := newVolume(t)
	v.write(New(Options{}), tree(file("d/a", "1"), file("d/z", "1")))
	if result := v.write(New(Options{}), tree(file("d/a", "1"), file("d/m/x", "1"), file("d/z", "1"))); result.Linked != 2 {
		t.Errorf("Write = %+v, want 2 files linked", result)
	}
}

// TestKeptFileOfAnotherWriter: nor what it remembers of a file that it keeps.
func TestKeptFileOfAnotherWriter(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("kept", "first"), file("other", "1")))
	v.write(New(Options{}), tree(file("kept", "second"), file("other", "1")))
	kept := file("kept", "")
	kept.Keep = true
	v.must(second(w.Write(t.Context(), v.root, tree(kept, file("other", "2")))))
	v.write(w, tree(file("kept", "first"), file("other", "2")))
}

// TestUnchanged writes the same tree again: nothing changes, not even the times.
func TestUnchanged(t *testing.T) {
	fresh := func() *volume.Payload {
		return tree(file("a", "1"), file("empty", ""), withMode(0o400, file("c/d", strings.Repeat("x", 5000))))
	}
	for name, w := range bothWriters() {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t)
			first := v.write(w, fresh())
			paths := []string{"a", "empty", "c", "c/d", ".", dataName + "/."}
			before := map[string]syscall.Stat_t{}
			for _, path := range paths {
				before[path] = v.inode(path)
			}
			unowned := fresh()
			unowned.UID, unowned.GID = volume.NoOwner, volume.NoOwner
			for i, tr := range []*volume.Payload{fresh(), unowned, fresh()} {
				if i == 2 {
					w = New(w.opts) // it must read the tree
				}
				result, err := w.Write(t.Context(), v.root, tr)
				if want := (Result{Generation: first.Generation}); err != nil || result != want {
					t.Errorf("write %d: %+v, %v, want %+v", i, result, err, want)
				}
				for _, path := range paths {
					if st := v.inode(path); st.Ctim != before[path].Ctim || st.Mtim != before[path].Mtim || st.Ino != before[path].Ino {
						t.Errorf("write %d: %s was touched", i, path)
					}
				}
			}
		})
	}
}

// TestSamePlace: a large content at the place of the last one is the same only if it is as long. One elsewhere is compared by its digest.
func TestSamePlace(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	large := strings.Repeat("x", largeFile+2)
	data := []byte(large)
	shows := func(data []byte, changed bool) {
		t.Helper()
		all := tree(file("a", ""))
		all.Files[0].Data = data
		result, err := w.Write(t.Context(), v.root, all)
		v.must(err)
		v.prune()
		if v.check(all); result.Changed != changed {
			t.Errorf("%d bytes: changed: %t", len(data), result.Changed)
		}
	}
	shows(data, true)
	shows(data, false)
	shows(data[:largeFile+1], true)
	shows(data[1:], false) // the same bytes
	shows([]byte(large), true)
	shows(bytes.Clone(data), false)
}
