package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestInotifyd has updates of a volume told until the context ends.
func TestInotifyd(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, writer, []string{"inotifyd", "-", dir + ":y"})
		writer.CloseWithError(err)
		done <- err
	}()
	told := make(chan string)
	go func() {
		defer close(told)
		for lines := bufio.NewScanner(reader); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	// Nothing says that the watch has begun, so updates are made until one is told.
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	got := ""
	for i := 0; got == ""; i++ {
		show(t, dir, fmt.Sprintf("..%d", i), "new")
		select {
		case got = <-told:
		case <-ticker.C:
		}
	}
	if want := "y\t" + dir + "\t..data"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	cancel()
	for range told { // of the updates that were made before
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for _, args := range [][]string{{"program", dir + ":y"}, {"-", dir}} {
		if err := run(t.Context(), io.Discard, append([]string{"inotifyd"}, args...)); err == nil || err.Error() != usage {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := run(t.Context(), io.Discard, []string{"inotifyd", "-", filepath.Join(dir, "none") + ":y"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestInstall has the program copy itself.
func TestInstall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "copy")
	if err := run(t.Context(), io.Discard, []string{"install", file}); err != nil {
		t.Fatal(err)
	}
	copied, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Stat("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if copied.Size() != own.Size() || copied.Mode()&0o111 == 0 {
		t.Errorf("the copy has %d bytes of %d, and the mode %s", copied.Size(), own.Size(), copied.Mode())
	}
}
