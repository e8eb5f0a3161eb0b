package writer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// generations returns the names of the generations in the volume, sorted.
func (v *testVolume) generations() []string {
	v.Helper()
	return slices.DeleteFunc(v.names(), func(name string) bool { return !isGeneration(name) })
}

// TestGenerationBeforeStays has a reader that opened ..data before a switch: all of
// its generation stays readable until a Prune of its time, and not longer.
func TestGenerationBeforeStays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	write := func(content string) Result {
		t.Helper()
		result, err := w.Write(t.Context(), v.root, tree(file("a", content), file("d/b", content)))
		v.must(err)
		return result
	}
	read := func(dir *os.Root) string {
		a, errA := dir.ReadFile("a")
		b, errB := dir.ReadFile("d/b")
		if errA != nil || errB != nil {
			return "gone"
		}
		return string(a) + string(b)
	}
	first := write("1").Generation
	if w.Stale() {
		t.Error("stale after the first write")
	}
	reader, err := os.OpenRoot(filepath.Join(v.path, dataName))
	v.must(err)
	defer reader.Close()

	second := write("2").Generation
	if got := v.generations(); !w.Stale() || !sameNames(got, first, second) {
		t.Errorf("stale: %v, generations %q, want %q and %q", w.Stale(), got, first, second)
	}
	if got := read(reader); got != "11" {
		t.Errorf("the reader of the generation before sees %q", got)
	}
	write("2") // nothing to do, so nothing is removed
	if got := read(reader); !w.Stale() || got != "11" {
		t.Errorf("after a write of the same, stale: %v, the reader sees %q", w.Stale(), got)
	}

	since := w.StaleSince()
	third := write("3").Generation
	if got := v.generations(); !w.Stale() || !sameNames(got, first, second, third) || !w.StaleSince().Equal(since) {
		t.Errorf("stale: %v since %v, generations %q, want %q, %q and %q", w.Stale(), w.StaleSince(), got, first, second, third)
	}
	if got := read(reader); got != "11" {
		t.Errorf("after two switches the reader sees %q", got)
	}
	v.must(w.Prune(t.Context(), v.root, since.Add(-1)))
	if got := read(reader); !w.Stale() || got != "11" {
		t.Errorf("before its time, stale: %v, the reader sees %q", w.Stale(), got)
	}
	v.must(w.Prune(t.Context(), v.root, since))
	if got := v.generations(); !w.Stale() || !w.StaleSince().After(since) || !sameNames(got, second, third) {
		t.Errorf("stale: %v since %v, generations %q, want %q and %q", w.Stale(), w.StaleSince(), got, second, third)
	}
	if got := read(reader); got != "gone" {
		t.Errorf("the reader of a generation long gone sees %q", got)
	}

	v.prune(w)
	if got := v.generations(); !sameNames(got, third) {
		t.Errorf("after Prune: generations %q, want %q", got, third)
	}
	v.check(tree(file("a", "3"), file("d/b", "3")))
}

func sameNames(got []string, want ...string) bool {
	slices.Sort(want)
	return slices.Equal(got, want)
}

// TestPruneFails keeps in mind what could not be removed, also over a Write that can't
// remove it either, and one that fails before it gets that far.
func TestPruneFails(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	v.write(w, tree(file("a", "1")))
	_, err := w.Write(t.Context(), v.root, tree(file("a", "2")))
	v.must(err)
	kernel := w.fs
	w.fs = stepped{kernel, func(op, _ string) error {
		if strings.HasPrefix(op, "unlink") || strings.HasPrefix(op, "rmdir") {
			return unix.EIO
		}
		return nil
	}}
	if err := w.Prune(v.Context(), v.root, time.Now()); err == nil || !w.Stale() {
		t.Errorf("Prune = %v, stale: %v", err, w.Stale())
	}
	if _, err := w.Write(t.Context(), v.root, tree(file("a", "3"))); err != nil || !w.Stale() {
		t.Errorf("Write = %v, stale: %v", err, w.Stale())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.fs = kernel
	if _, err := w.Write(ctx, v.root, tree(file("a", "4"))); err == nil || !w.Stale() {
		t.Errorf("Write = %v, stale: %v", err, w.Stale())
	}
	v.write(w, tree(file("a", "4")))
}

// TestRestartKeepsGenerations has a new Writer find what one that was killed would have pruned: it
// counts as superseded from then on, whether a write or a prune comes first.
func TestRestartKeepsGenerations(t *testing.T) {
	for _, content := range []string{"", "3", "4"} { // no write, of the same, of another
		v, w := newVolume(t), New(Options{})
		for _, content := range []string{"1", "2", "3"} {
			v.must(second(w.Write(t.Context(), v.root, tree(file("a", content)))))
		}
		found, begun := v.generations(), time.Now()
		w = New(Options{})
		if content != "" {
			v.must(second(w.Write(t.Context(), v.root, tree(file("a", content)))))
		}
		if !w.Stale() || w.StaleSince().Before(begun) {
			t.Errorf("%q: stale: %v since %v, want %v", content, w.Stale(), w.StaleSince(), begun)
		}
		v.must(w.Prune(t.Context(), v.root, begun))
		for _, name := range found {
			if !slices.Contains(v.generations(), name) {
				t.Errorf("%q: %s is gone, left are %q", content, name, v.generations())
			}
		}
		v.prune(w)
		v.check(tree(file("a", max(content, "3"))))
	}
}
