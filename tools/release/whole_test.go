package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTwoReleasesAreTheSame makes a release of the last commit in two directories, the second one
// with a build cache of its own, so that everything is compiled twice. Both have the same bytes,
// each part has the version, and cosign itself verifies the checksums as SECURITY.md says.
func TestTwoReleasesAreTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles all programs for all platforms twice: make test-long")
	}
	commit := must(exec.CommandContext(t.Context(), "git", "-C", checkout(t), "rev-parse", "HEAD").Output())(t)
	at := strings.TrimSpace(string(commit))
	first, second := makeRelease(t, at, ""), makeRelease(t, at, t.TempDir())
	sums := read(t, first, "SHA256SUMS")
	if other := read(t, second, "SHA256SUMS"); !bytes.Equal(sums, other) {
		t.Errorf("two releases differ:\n%s\n%s", sums, other)
	}
	t.Logf("twice the same:\n%s", sums)
	if name := "kubectl-refvol_windows_amd64.tar.gz"; !strings.Contains(string(sums), "  "+name+"\n") {
		t.Errorf("there is no %s", name)
	}
	output, err := exec.CommandContext(t.Context(), filepath.Join(first, "refvol-plugin_linux_amd64"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(output), testVersion) {
		t.Errorf("the binary says %s, %v", output, err)
	}
	verifyAsThePageSays(t, first, buildCosign(t))
}

// buildCosign builds cosign. No module of the repository requires its modules, which are hundreds.
func buildCosign(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "install", "-trimpath", "github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOBIN="+dir)
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return filepath.Join(dir, "cosign")
}

// makeRelease makes a release of a commit in a new clone; cache is go's build cache, "" for the
// usual one.
func makeRelease(t *testing.T, commit, cache string) string {
	t.Helper()
	clone := filepath.Join(t.TempDir(), "clone")
	commands := [][]string{
		{"git", "clone", "--quiet", "--shared", "--no-checkout", checkout(t), clone},
		{"git", "-C", clone, "checkout", "--quiet", "--detach", commit},
		{"make", "-C", clone, "release", "VERSION=" + testVersion},
	}
	for _, args := range commands {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if cache != "" {
			cmd.Env = append(os.Environ(), "GOCACHE="+cache)
		}
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, output)
		}
	}
	return filepath.Join(clone, "bin", "release")
}
