package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTwoReleasesAreTheSame makes a release of the last commit in two directories, the second one
// with a build cache of its own, so that everything is compiled twice. Both have the same bytes, and
// each part has the version.
func TestTwoReleasesAreTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles all programs for all platforms twice: make test-long")
	}
	commit, err := exec.CommandContext(t.Context(), "git", "-C", checkout(t), "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	at := strings.TrimSpace(string(commit))
	first, second := makeRelease(t, at, ""), makeRelease(t, at, t.TempDir())
	sums := read(t, first, "SHA256SUMS")
	if other := read(t, second, "SHA256SUMS"); !bytes.Equal(sums, other) {
		t.Errorf("two releases differ:\n%s\n%s", sums, other)
	}
	t.Logf("twice the same:\n%s", sums)
	for _, name := range []string{"refvol-9.8.7-rc.1.tgz", "refvol.yaml", "CHANGES.md", "refvol-plugin_linux_arm64.cdx.json", "krew.yaml", "kubectl-refvol_windows_amd64.tar.gz"} {
		if !strings.Contains(string(sums), "  "+name+"\n") {
			t.Errorf("there is no %s", name)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		path := filepath.Join(first, "refvol-plugin_linux_"+arch)
		file, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if file.Section(".interp") != nil || len(file.Progs) == 0 {
			t.Errorf("%s is linked dynamically", path)
		}
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}
	output, err := exec.CommandContext(t.Context(), filepath.Join(first, "refvol-plugin_linux_amd64"), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(output), testVersion) {
		t.Errorf("the binary says %s, %v", output, err)
	}
	startsOnArm(t, filepath.Join(first, "refvol-plugin_linux_arm64"))
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

// startsOnArm runs the binary of arm64 in an emulator, Debian's, which apt fetches unless the
// machine has it.
func startsOnArm(t *testing.T, binary string) {
	t.Helper()
	emulator, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		emulator = fetchEmulator(t)
	}
	output, err := exec.CommandContext(t.Context(), emulator, binary, "version").CombinedOutput()
	if err != nil || !strings.Contains(string(output), testVersion) || !strings.Contains(string(output), "linux/arm64") {
		t.Errorf("on arm64 the binary says %s, %v", output, err)
	}
	t.Logf("on arm64: %s", output)
}

// fetchEmulator unpacks Debian's package and installs nothing.
func fetchEmulator(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "apt-get -qq download qemu-user-static && dpkg-deb -x qemu-user-static_*.deb .")
	cmd.Dir = dir
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("qemu-aarch64-static is needed to start the binary of arm64: install Debian's qemu-user-static (apt-get download: %v: %s)", err, output)
	}
	found, err := filepath.Glob(filepath.Join(dir, "usr", "bin", "qemu-aarch64*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("qemu-user-static has no qemu-aarch64: %v", err)
	}
	return found[0]
}
