package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// show gives a directory the layout of a ConfigMap's volume, or changes what it shows.
func show(t *testing.T, dir, generation, text string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, generation), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, generation, "key"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(generation, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..data/key", filepath.Join(dir, "key")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
}

// Each file is told of once, when it has its text, in the order in which they come; a
// change to another text is none.
func TestArrivals(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	args := []string{"arrivals", "10s"}
	for _, dir := range dirs {
		show(t, dir, "..1", "old")
		args = append(args, filepath.Join(dir, "key"), "new")
	}
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(t.Context(), writer, args)
		writer.CloseWithError(err)
		done <- err
	}()
	lines := bufio.NewScanner(reader)
	name, err := clock.Name()
	if err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() || lines.Text() != name {
		t.Fatalf("first line %q, %v", lines.Text(), lines.Err())
	}
	show(t, dirs[0], "..2", "other")
	for i, dir := range []string{dirs[1], dirs[0]} {
		before, err := clock.Now()
		if err != nil {
			t.Fatal(err)
		}
		show(t, dir, fmt.Sprintf("..3%d", i), "new")
		if !lines.Scan() {
			t.Fatalf("no answer: %v", lines.Err())
		}
		after, err := clock.Now()
		if err != nil {
			t.Fatal(err)
		}
		var got seen
		if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.File != filepath.Join(dir, "key") || got.At < before || got.At > after {
			t.Errorf("got %+v between %s and %s", got, before, after)
		}
	}
	if lines.Scan() {
		t.Errorf("and then %q", lines.Text())
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
