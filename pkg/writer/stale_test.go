package writer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// generations returns the names of the generations in the volume, sorted.
func (v *testVolume) generations() []string {
	v.Helper()
	return slices.DeleteFunc(v.names(), func(name string) bool { return !isGeneration(name) })
}

// TestGenerationBeforeStays has a reader that opened ..data before a switch: all of its generation stays readable until
// a Prune of its time, and not longer.
func TestGenerationBeforeStays(t *testing.T) {
	v, w := newVolume(t), New(Options{})
	write := func(content string) (string, time.Time) {
		t.Helper()
		result, err := w.Write(t.Context(), v.root, tree(file("a", content), file("d/b", content)))
		v.must(err)
		born, ok := birth(result.Generation)
		if !ok {
			t.Errorf("generation %s", result.Generation)
		}
		return result.Generation, born
	}
	read := func(dir *os.Root) string {
		a, errA := dir.ReadFile("a")
		b, errB := dir.ReadFile("d/b")
		if errA != nil || errB != nil {
			return "gone"
		}
		return string(a) + string(b)
	}
	prune := func(before, want time.Time, left ...string) {
		t.Helper()
		next, err := Prune(v.root, before, nil)
		if err != nil || !next.Equal(want) || !sameNames(v.generations(), left...) {
			t.Errorf("Prune = %v, %v, want %v; left are %q, want %q", next, err, want, v.generations(), left)
		}
	}
	first, _ := write("1")
	reader, err := os.OpenRoot(filepath.Join(v.path, dataName))
	v.must(err)
	defer reader.Close()
	prune(time.Now(), time.Time{}, first)

	second, end := write("2")
	write("2") // nothing to do, so nothing is removed
	third, next := write("3")
	prune(end.Add(-1), end, first, second, third)
	if got := read(reader); got != "11" {
		t.Errorf("after two switches the reader sees %q", got)
	}
	w = New(Options{}) // what another process knew is in the names
	prune(end, next, second, third)
	if got := read(reader); got != "gone" {
		t.Errorf("the reader of a generation long gone sees %q", got)
	}
	prune(next, time.Time{}, third)
	v.check(tree(file("a", "3"), file("d/b", "3")))

	// The clock is set back by an hour: names go on in order, and nothing stays for an hour.
	future := time.Now().Add(time.Hour).UTC().Format(birthLayout) + "0000"
	v.must(os.Rename(filepath.Join(v.path, third), filepath.Join(v.path, future)))
	v.must(replaceLink(v.path, dataName, future))
	last, _ := write("4")
	if last <= future {
		t.Errorf("%s comes after %s", last, future)
	}
	prune(time.Now().Add(-time.Second), time.Time{}, last)
}

func sameNames(got []string, want ...string) bool {
	slices.Sort(want)
	return slices.Equal(got, want)
}
