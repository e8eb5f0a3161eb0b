package harness

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A switch is told of with the volume's root; other renames are not.
func TestWatchSwitches(t *testing.T) {
	told := make(chan string, 8)
	w, err := WatchSwitches(func(dir string) error {
		told <- dir
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	one, other := t.TempDir(), t.TempDir()
	for _, step := range []error{
		w.Add(one), w.Add(other),
		replaceLink(one, "key"), replaceLink(one, "..data"), replaceLink(other, "..data"), replaceLink(one, "..data"),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	var got []string
	for range 3 {
		got = append(got, <-told)
	}
	if want := []string{one, other, one}; !slices.Equal(got, want) {
		t.Errorf("told of %q, want %q", got, want)
	}
	if err := w.Add(filepath.Join(one, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func replaceLink(dir, name string) error {
	temporary := filepath.Join(dir, "..tmp")
	return errors.Join(os.Symlink("target", temporary), os.Rename(temporary, filepath.Join(dir, name)))
}

// What the caller finds wrong ends the watch, and Close says it.
func TestWatchSwitchesEndsWithAnError(t *testing.T) {
	wrong := errors.New("wrong")
	w, err := WatchSwitches(func(string) error { return wrong })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := errors.Join(w.Add(dir), replaceLink(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	<-w.ended
	if err := w.Close(); !errors.Is(err, wrong) {
		t.Errorf("got %v, want %v", err, wrong)
	}
}
