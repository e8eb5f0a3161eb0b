package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTextsOfABlock(t *testing.T) {
	const table = "- name: tabs\n  file: a/b.go\n  old: |\n    \tif x {\n    \t\treturn\n  new: |\n    y\n\n" +
		"- name: nothing\n  file: a/b.go\n  package: ./c\n  old: |\n    y\n    \tz\n  new: \"\"\n"
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readTable(path)
	if err != nil || len(got) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	want := []change{
		{Name: "tabs", File: "a/b.go", Package: "./a", Old: "\tif x {\n\t\treturn", New: "y"},
		{Name: "nothing", File: "a/b.go", Package: "./c", Old: "y\n\tz"},
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
}
