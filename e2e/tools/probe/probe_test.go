package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// ask runs one command and returns its answer.
func ask(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), &out, args); err != nil {
		t.Fatalf("probe %q: %v", args, err)
	}
	return out.String()
}

// The text arrives after "ready", and the answer tells what came before it.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	file, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- run(t.Context(), writer, []string{"await", file, "new", "10s", other})
		writer.Close()
	}()
	lines := bufio.NewScanner(reader)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("first line %q, %v", lines.Text(), lines.Err())
	}
	if err := os.WriteFile(file, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !lines.Scan() {
		t.Fatalf("no answer: %v, %v", lines.Err(), <-done)
	}
	var got arrival
	if err := json.Unmarshal(lines.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got.Reads < 2 || got.Failed < 1 || got.Error == "" || got.UnixNano == 0 || got.Others[other] != "old" {
		t.Errorf("got %+v", got)
	}
}
