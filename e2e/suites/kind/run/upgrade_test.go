package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The upgrade test starts from another commit's files. A checkout without history has only its own.
func TestCheckOutOlder(t *testing.T) {
	without := &settings{root: t.TempDir()}
	if root, err := checkOutOlder(t.Context(), without, stopwatch{}, filepath.Join(t.TempDir(), "older")); root != without.root || err != nil {
		t.Errorf("without the commit: %s, %v", root, err)
	}
	whole := &settings{root: t.TempDir()}
	if err := (command{args: []string{"git", "-C", whole.root, "init", "--quiet"}}).quiet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := checkOutOlder(t.Context(), whole, stopwatch{}, filepath.Join(t.TempDir(), "older")); err == nil {
		t.Error("a repository that is not shallow may lack the commit")
	}
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "older")
	older, err := checkOutOlder(t.Context(), &settings{root: root}, stopwatch{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	if older == root {
		t.Skip("this checkout has no history")
	}
	for _, name := range []string{"Makefile", "deploy/base", "cmd/refvol-plugin"} {
		if _, err := os.Stat(filepath.Join(older, name)); err != nil || older != dir {
			t.Errorf("%s: %v", older, err)
		}
	}
}
