package writer

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// generations returns the names of the volume's generations, sorted.
func (v *testVolume) generations() []string {
	v.Helper()
	return slices.DeleteFunc(v.names(), func(name string) bool { return !isGeneration(name) })
}

// TestGenerationBeforeStays: a generation from before a switch stays as long as stays of Prune says so, and not longer.
func TestGenerationBeforeStays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	write := func(content string) string {
		t.Helper()
		result, err := w.Write(t.Context(), v.root, tree(file("a", content), file("d/b", content)))
		v.must(err)
		if Present(v.root) != result.Generation {
			t.Errorf("%q is present, want %q", Present(v.root), result.Generation)
		}
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
	v.must(replaceLink(v.path, dataName, future))
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
	result, err := w.Write(ctx, v.root, tree(file("a", "2")))
	v.must(err)
	if since, _ := visibleSince(result.Generation); ctx.last.IsZero() || since.Before(ctx.last) {
		t.Errorf("the generation is visible since %s, before the look at %s", since, ctx.last)
	}
}
