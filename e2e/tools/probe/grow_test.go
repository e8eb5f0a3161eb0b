package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command ends once all files have the last text, and tells of what it read until then.
func TestGrow(t *testing.T) {
	dir := t.TempDir()
	early, late := filepath.Join(dir, "early"), filepath.Join(dir, "late")
	put := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(early, "9")
	put(late, "2")
	reader, writer := io.Pipe()
	go func() { writer.CloseWithError(run(t.Context(), writer, []string{"grow", "1m", "9", early, late})) }()
	lines := bufio.NewReader(reader)
	if line, err := lines.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	put(early, "1")
	put(late, "9")
	if err := run(t.Context(), io.Discard, []string{"grow", "10ms", "9", early, late}); err == nil || !strings.Contains(err.Error(), `not "9"`) {
		t.Errorf("while one lacks the text: %v", err)
	}
	put(early, "9")
	line, err := lines.ReadString('\n')
	var got growth
	if err != nil || json.Unmarshal([]byte(line), &got) != nil || got.Reads < 4 {
		t.Fatalf("got %q, %v", line, err)
	}
}

func TestGrowthCounts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	highest := map[string]string{}
	var g growth
	for _, step := range []struct {
		text, missing string
		want          growth
	}{
		{"2", file, growth{Reads: 1}},
		{"3", file, growth{Reads: 2}},
		{"1", file, growth{Reads: 3, Back: 1}},
		{"", file, growth{Reads: 4, Back: 1, Failed: 1}},
		{"9", "", growth{Reads: 5, Back: 1, Failed: 1}},
	} {
		var err error
		if step.text == "" {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, []byte(step.text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		missing := g.read([]string{file}, highest, "9")
		if got := (growth{Reads: g.Reads, Back: g.Back, Failed: g.Failed}); missing != step.missing || got != step.want {
			t.Errorf("after %q: missing %q, %+v, want %q, %+v", step.text, missing, g, step.missing, step.want)
		}
		if step.text == "1" && !strings.Contains(g.Error, `"1" after "3"`) {
			t.Errorf("error %q", g.Error)
		}
	}
}
