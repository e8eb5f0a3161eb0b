package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestReleaseVerifies makes a release for this architecture, with a small program in the place of each binary, and verifies
// it by the commands of SECURITY.md.
func TestReleaseVerifies(t *testing.T) {
	o, dir := prepared(t)
	on := platform{"linux", runtime.GOARCH}
	small := filepath.Join(t.TempDir(), "small")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", small, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	content := must(os.ReadFile(small))(t)
	var built []binary
	want := []string{"refvol-" + o.number() + ".tgz", "krew.yaml", "SHA256SUMS"}
	for _, p := range o.programs {
		b := binary{p, on, filepath.Join(dir, p.name+"_"+on.String())}
		fatal(t, os.WriteFile(b.path, content, 0o700))
		built = append(built, b)
		want = append(want, filepath.Base(b.path), filepath.Base(b.path)+".cdx.json", p.name+"-image.tar")
		if p.krew {
			want = append(want, filepath.Base(b.path)+".tar.gz")
		}
	}
	fatal(t, writeAll(t.Context(), o, dir, built))
	slices.Sort(want)
	if files := namesIn(t, dir); !slices.Equal(files, want) {
		t.Errorf("the release has %q, want %q", files, want)
	}
	verifyAsThePageSays(t, dir)
}

// verifyAsThePageSays runs the commands of SECURITY.md. Commands that need the registry, GitHub or Sigstore are only recorded. In the place of
// a signature, the checksums are compared with what was signed. Then files are changed, and the commands find that. No test has cosign
// verify a real bundle, because that would need a build of cosign.
func verifyAsThePageSays(t *testing.T, dir string) {
	t.Helper()
	// programs has what stands in for others, what was signed, and the calls.
	programs := t.TempDir()
	fatal(t, errors.Join(write(dir, "SHA256SUMS.sigstore.json", []byte("{}")), write(programs, "signed", read(t, dir, "SHA256SUMS"))))
	// The stand-ins fail if a file that they are given does not exist.
	for name, script := range map[string]string{
		"gh": `[[ $3 == oci://* || -f $3 ]]`,
		"cosign": `[ "$1" = verify-blob ] || exit 0
[ "$3" = --bundle ] && [ -s "$4" ]
exec cmp "$2" "$PROGRAMS/signed"`,
	} {
		script = "#!/bin/bash\nset -euo pipefail\necho \"" + name + " $*\" >>\"$PROGRAMS/calls\"\n" + script + "\n"
		fatal(t, os.WriteFile(filepath.Join(programs, name), []byte(script), 0o700))
	}
	run := func(script string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-e", "-c", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "PROGRAMS="+programs)
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	_, page, _ := strings.Cut(readRoot(t, "SECURITY.md"), "\n## Verifying a release\n")
	page, _, _ = strings.Cut(page, "\n## ")
	var commands []string
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindAllStringSubmatch(page, -1) {
		commands = append(commands, block[1])
	}
	version := regexp.MustCompile(`(?m)^VERSION=.*$`)
	if len(commands) == 0 || !version.MatchString(commands[0]) {
		t.Fatalf("SECURITY.md has no commands that verify a release, or they name no version: %q", commands)
	}
	commands[0] = version.ReplaceAllString(commands[0], "VERSION="+testVersion)

	output, err := run(strings.Join(commands, "\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, name := range namesIn(t, dir) {
		if !strings.HasPrefix(name, "SHA256SUMS") && !strings.Contains("\n"+output, "\n"+name+": OK\n") {
			t.Errorf("%s is not verified:\n%s", name, output)
		}
	}
	wantCalls(t, lines(t, programs, "calls"))

	// The checksums find a changed file. An attacker who also changes the checksums can't sign them.
	for _, name := range []string{"refvol-" + testVersion[1:] + ".tgz", "SHA256SUMS"} {
		original := read(t, dir, name)
		changed := append(slices.Clone(original), '\n')
		fatal(t, os.WriteFile(filepath.Join(dir, name), changed, 0o600))
		output, err := run(commands[0])
		if compared := strings.Contains(output, ": OK\n"); err == nil || compared != (name != "SHA256SUMS") {
			t.Errorf("%s has changed: %v, and the checksums are compared: %t\n%s", name, err, compared, output)
		}
		fatal(t, os.WriteFile(filepath.Join(dir, name), original, 0o600))
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := must(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// wantCalls wants the signature of the checksums verified first, and all images and the chart, each as signed by the workflow of
// the version.
func wantCalls(t *testing.T, calls []string) {
	t.Helper()
	if !strings.HasPrefix(calls[0], "cosign verify-blob SHA256SUMS --bundle SHA256SUMS.sigstore.json ") {
		t.Errorf("first is %s", calls[0])
	}
	want := []string{"verify " + registry + "charts/refvol:" + testVersion[1:]}
	for _, p := range programs() {
		want = append(want, "verify "+registry+p.name+":"+testVersion, "verify-attestation "+registry+p.name+":"+testVersion)
	}
	var got []string
	for _, call := range calls {
		words := strings.Fields(call)
		if words[0] != "cosign" {
			continue
		}
		if !strings.Contains(call, " --certificate-identity https://github.com/refvol/refvol/.github/workflows/release.yml@refs/tags/"+testVersion+" --certificate-oidc-issuer https://token.actions.githubusercontent.com") {
			t.Errorf("%s does not ask who has signed", call)
		}
		for _, word := range words {
			if strings.HasPrefix(word, registry) {
				got = append(got, words[1]+" "+word)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("verified are %q, want %q", got, want)
	}
}

// TestTwoReleasesAreTheSame makes a release of the last commit in two directories, the second one
// with a build cache of its own, so that everything is compiled twice. Both have the same bytes,
// each part has the version, and the commands of SECURITY.md verify it.
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
	verifyAsThePageSays(t, first)
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
