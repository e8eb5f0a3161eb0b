package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// Each text of a file is told once, whatever becomes of the others, and a read that gives an older
// text with its error, until the context ends.
func TestFollow(t *testing.T) {
	still, dir := t.TempDir(), t.TempDir()
	show(t, still, "..1", "1")
	show(t, dir, "..1", "1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	file := filepath.Join(dir, "key")
	go func() {
		done <- run(ctx, writer, []string{"follow", filepath.Join(still, "key"), file})
		writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	next := func() (f followed) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("no line: %v", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		return f
	}
	if name, err := clock.Name(); err != nil || !lines.Scan() || lines.Text() != name {
		t.Fatalf("first line %q, want %q, %v", lines.Text(), name, err)
	}
	if got := next(); got.File != filepath.Join(still, "key") || got.Text != "1" {
		t.Errorf("at first: %+v", got)
	}
	if got := next(); got.File != file || got.Text != "1" || got.Error != "" || got.Reads != 1 {
		t.Errorf("at first: %+v", got)
	}
	before, err := clock.Now()
	if err != nil {
		t.Fatal(err)
	}
	show(t, dir, "..2", "2")
	if got := next(); got.File != file || got.Text != "2" || got.Error != "" || got.Reads < 2 || got.At <= before {
		t.Errorf("after a change: %+v", got)
	}
	show(t, dir, "..3", "1")
	if got := next(); got.File != file || got.Text != "2" || !strings.Contains(got.Error, `"1" after "2"`) {
		t.Errorf("after an older text: %+v", got)
	}
	cancel()
	// What it still has to tell must not hold it.
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
