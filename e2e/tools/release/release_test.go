package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every release is a commit that the newest one follows, and has what a test builds from it.
func TestReleasesAreOfThisHistory(t *testing.T) {
	all, err := All()
	if err != nil || len(all) == 0 {
		t.Fatalf("releases %v, %v", all, err)
	}
	for _, r := range all {
		dir := t.TempDir()
		if err := r.Unpack(t.Context(), "../../..", dir); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"Makefile", "go.mod", "deploy/base/kustomization.yaml"} {
			if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
				t.Errorf("%s: %v", r.Version, err)
			}
		}
		if err := git(t.Context(), "../../..", "merge-base", "--is-ancestor", r.Commit, "HEAD"); err != nil {
			t.Errorf("%s is not behind this commit: %v", r.Version, err)
		}
	}
}

func TestParse(t *testing.T) {
	commit := strings.Repeat("a", 40)
	all, err := parse("v0.1.0 " + commit + "\nv1.20.3 " + commit + "\n")
	if err != nil || len(all) != 2 || all[1] != (Release{"v1.20.3", commit}) {
		t.Errorf("releases %v, %v", all, err)
	}
	for _, text := range []string{"v0.1.0 8b7931d\n", "0.1.0 " + commit, "v0.1.0", "\n", "v0.1 " + commit, "v0.1.0 " + commit + " x"} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), "is not a version and a full commit") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A clone without the history says what to do.
func TestShallowClone(t *testing.T) {
	dir := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	r := Release{"v9.9.9", strings.Repeat("9", 40)}
	err := r.Unpack(t.Context(), dir, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "lacks the commit "+r.Commit+" of v9.9.9; in a shallow clone run `git fetch --unshallow`") {
		t.Errorf("error %v", err)
	}
}
