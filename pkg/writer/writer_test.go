package writer

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func withMode(mode fs.FileMode, f volume.File) volume.File {
	f.Mode = mode
	return f
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
	"nothing in a file":       {tree(file("a", "")), tree(file("a", "1"))},
	"binary content":          {tree(file("a", string([]byte{0, 1, 0xff, 0xfe, '\n', 0}))), tree(file("a", "\x00"))},
	"large content":           {tree(file("a", strings.Repeat("0123456789", 1<<17))), tree(file("a", "1"))},
	"dotfiles":                {tree(file(".a", "1"), file(".b/.c", "2"), file(".b/..c", "3")), tree()},
	"modes": {
		tree(withMode(0o400, file("a", "1")), withMode(0o440, file("b", "2")), withMode(0o777, file("c", "3"))), tree(file("a", "1"), file("b", "2"), file("c", "3")),
	},
	"directories":       {tree(file("a/b", "1"), file("a/c/d", "2"), file("a/c/e", "3"), file("f", "4"), file("a-b", "5")), tree()},
	"neighbours":        {tree(file("a/x", "1"), file("a-/x", "2"), file("a0", "3"), file("a.b/x/y", "4")), tree()},
	"dots inside":       {tree(file("a..b", "1"), file("a/..b", "2"), file("a/...", "3")), tree()},
	"deep":              {tree(file(strings.Repeat("d/", 300)+"f", "1")), tree()},
	"longest name":      {tree(file(strings.Repeat("n", 255), "1")), tree()},
	"spaces and quotes": {tree(file("a b", "1"), file(`"`, "2"), file("\n", "3"), file("ü", "4")), tree()},
}

func withDirMode(mode fs.FileMode, tree *volume.Payload) *volume.Payload {
	tree.DirMode = mode
	return tree
}

// TestUpdate does each transition in both directions, with the Writer that wrote the first tree and with one that must read it. In place,
// the generation stays. A new process has nothing to write again.
func TestUpdate(t *testing.T) {
	for name, tt := range transitions {
		t.Run(name, func(t *testing.T) {
			eachWay(t, bothOf(Options{}), func(t *testing.T, o Options, next func() *Writer) {
				v, generation := newVolume(t), ""
				write := v.write
				if o.InPlace {
					write = v.rewrite
				}
				for i, tree := range []*volume.Payload{tt.from, tt.to, tt.from, tt.to} {
					result := write(next(), tree)
					if !result.Changed || o.InPlace && i > 0 && result.Generation != generation {
						t.Errorf("write %d: Result = %+v, generation before %s", i, result, generation)
					}
					generation = result.Generation
					if want := (Result{Changed: true, Generation: generation, Files: len(tree.Files), Bytes: tree.Size()}); i == 0 && result != want {
						t.Errorf("Result = %+v, want %+v", result, want)
					}
					if again := write(New(o), tree); again.Changed {
						t.Errorf("a new process wrote it again: %+v", again)
					}
				}
			})
		})
	}
}

// TestAnotherWriter: a writer does not trust what it remembers after another one has written, also of a file that it keeps.
func TestAnotherWriter(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	first, second := tree(file("kept", "first"), file("other", "1")), tree(file("kept", "second"), file("other", "1"))
	v.write(w, first)
	v.write(New(Options{}), second)
	v.write(w, first)
	v.write(New(Options{}), second)
	kept := file("kept", "")
	kept.Keep = true
	must.Get(w.Write(t.Context(), v.root, tree(kept, file("other", "2"))))(t)
	v.write(w, tree(file("kept", "first"), file("other", "2")))
}

// TestLinkedBesideNewDirectory: a directory that is missing does not hide its parent's other files from a new process.
func TestLinkedBesideNewDirectory(t *testing.T) {
	v := newVolume(t)
	v.write(New(Options{}), tree(file("d/a", "1"), file("d/z", "1")))
	if result := v.write(New(Options{}), tree(file("d/a", "1"), file("d/m/x", "1"), file("d/z", "1"))); result.Linked != 2 {
		t.Errorf("Write = %+v, want 2 files linked", result)
	}
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
				expect.Equal(t, fmt.Sprintf("write %d", i), must.Get(w.Write(t.Context(), v.root, tr))(t), Result{Generation: first.Generation})
				for _, path := range paths {
					expect.Equal(t, fmt.Sprintf("write %d: the status of %s", i, path), v.inode(path), before[path])
				}
			}
		})
	}
}

// TestSamePlace: a large content at the place of the last one is the same only if it is as long. One elsewhere is compared by its digest, also
// if it is as long.
func TestSamePlace(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	large := strings.Repeat("x", largeFile+2)
	data := []byte(large)
	shows := func(data []byte, changed bool) {
		t.Helper()
		all := tree(file("a", ""))
		all.Files[0].Data = data
		result := must.Get(w.Write(t.Context(), v.root, all))(v)
		v.prune()
		v.check(all)
		expect.Equal(t, fmt.Sprintf("%d bytes changed", len(data)), result.Changed, changed)
	}
	shows(data, true)
	shows(data, false)
	shows(data[:largeFile+1], true)
	shows(data[1:], false) // the same bytes
	shows([]byte(large), true)
	shows(bytes.Clone(data), false)
	shows(bytes.ToUpper(data), true)
}

// TestStep: Step is called before each change that readers may see, and before nothing else. What it is called before has not happened yet.
func TestStep(t *testing.T) {
	for _, c := range []struct {
		name          string
		inPlace       bool
		first, second string
	}{
		{"atomic", false, "switch ..data, make a link, make a link", "name the generation, switch ..data, make a link, remove a link"},
		{"in place", true, "switch ..data, make a link, make a link", "renew the record, empty a file, rewrite a file, truncate a file, place a file, renew the record, make a link"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := newVolume(t)
			var steps []string
			step := func(change string) { steps = append(steps, change) }
			o := withAttributes(t)
			o.InPlace, o.Step = c.inPlace, step
			w := New(o)
			for _, round := range []struct{ want, a, other string }{{c.first, "1", "b"}, {c.second, "2", "c"}} {
				steps = nil
				next := tree(file("a", round.a), file(round.other, "1"))
				next.Record = "record " + round.a + "\n"
				v.writes(w, next)
				expect.Equal(t, "steps", strings.Join(steps, ", "), round.want)
			}
		})
	}
}

func (v *testVolume) generations() []string {
	v.Helper()
	return slices.DeleteFunc(v.names(), func(name string) bool { return !isGeneration(name) })
}

// TestGenerationBeforeStays: a generation from before a switch stays as long as stays of Prune says so, and not longer.
func TestGenerationBeforeStays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	write := func(content string) string {
		t.Helper()
		result := must.Get(w.Write(t.Context(), v.root, tree(file("a", content), file("d/b", content))))(v)
		expect.Equal(t, "the present generation", Present(v.root), result.Generation)
		return result.Generation
	}
	prune := func(stay []string, present string) {
		t.Helper()
		left, err := Prune(v.root, func(name string) bool { return slices.Contains(stay, name) }, nil)
		if all := append(slices.Clone(stay), present); err != nil || left != len(stay) || !sameNames(v.generations(), all...) {
			t.Errorf("Prune = %d, %v; left are %q, want %q", left, err, v.generations(), all)
		}
	}
	first := write("1")
	prune(nil, first)

	second := write("2")
	write("2") // there is nothing to do, so nothing is removed
	third := write("3")
	prune([]string{first, second}, third)
	prune([]string{second}, third)
	prune(nil, third)
	v.check(tree(file("a", "3"), file("d/b", "3")))

	// The clock is set back by an hour: names continue in order.
	future := time.Now().Add(time.Hour).UTC().Format(birthLayout) + "0000"
	v.must(os.Rename(filepath.Join(v.path, third), filepath.Join(v.path, future)))
	v.must(relink(dataName, future)(v.path))
	last := write("4")
	if last <= future {
		t.Errorf("%s comes after %s", last, future)
	}
	prune([]string{future}, last)
}

func sameNames(got []string, want ...string) bool {
	slices.Sort(want)
	return slices.Equal(got, want)
}

// looks is a context that knows when it was last looked at.
type looks struct {
	context.Context
	last time.Time
}

func (l *looks) Err() error {
	l.last = time.Now().UTC()
	return l.Context.Err()
}

// TestGenerationHasTheTimeOfItsSwitch: it may take long to write its files.
func TestGenerationHasTheTimeOfItsSwitch(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "1")))
	ctx := &looks{Context: t.Context()}
	result := must.Get(w.Write(ctx, v.root, tree(file("a", "2"))))(v)
	if since, _ := visibleSince(result.Generation); ctx.last.IsZero() || since.Before(ctx.last) {
		t.Errorf("the generation is visible since %s, before the look at %s", since, ctx.last)
	}
}
