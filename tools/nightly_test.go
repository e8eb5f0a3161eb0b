package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNightlyParts: the workflow has the parts of nightly.sh, and parts name packages and versions of Kubernetes that exist. Nothing else
// notices a wrong one before the night.
func TestNightlyParts(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + `=\((.*)\)$`).FindStringSubmatch(read("nightly.sh"))
		if found == nil {
			t.Fatalf("nightly.sh has no list %s", name)
		}
		return strings.Fields(found[1])
	}
	parts, named := list("parts"), map[string]bool{
		"kubectl-refvol": true, // a module of its own, whose tests take a minute for each mutant; fleet and health decide for it
		"node":           true, // it puts the other packages together, and has no tests but those of the simulation and of integration
	}
	for _, part := range list("packages") {
		parts = append(parts, "mutants-"+part)
		named[strings.TrimSuffix(strings.TrimSuffix(part, "-a"), "-b")] = true
	}
	packages, err := filepath.Glob("../*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range packages {
		if dir := filepath.Dir(file); (strings.HasPrefix(dir, "../pkg/") || strings.HasPrefix(dir, "../cmd/")) && !named[filepath.Base(dir)] {
			t.Errorf("%s is in no part of the mutants", dir)
			named[filepath.Base(dir)] = true
		}
	}
	for _, part := range parts {
		kind, name, _ := strings.Cut(part, "-")
		var needs string
		switch {
		case kind == "mutants":
			name = strings.TrimSuffix(strings.TrimSuffix(name, "-a"), "-b")
			needs = filepath.Join("..", "pkg", name)
			if strings.HasPrefix(name, "refvol-") {
				needs = filepath.Join("..", "cmd", name)
			}
		case part == "kind-crio":
			needs = filepath.Join("..", "e2e", "node-image", "crio")
		case kind == "kind" && name != "long" && name != "newest":
			needs = filepath.Join("..", "e2e", "node-image", "kubernetes", "versions", name+".mod")
		default:
			continue
		}
		if _, err := os.Stat(needs); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
	// A misspelled test in one of these lists would run in the part integration.
	var tests []string
	for _, name := range []string{"alone", "faults"} {
		found := regexp.MustCompile(`(?m)^` + name + `='\^\((.*)\)\$'$`).FindStringSubmatch(read("nightly.sh"))
		if found == nil {
			t.Fatalf("nightly.sh has no list %s", name)
		}
		tests = append(tests, strings.Split(found[1], "|")...)
	}
	sources, err := filepath.Glob(filepath.Join("..", "e2e", "suites", "integration", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var suite strings.Builder
	for _, file := range sources {
		suite.WriteString(read(file))
	}
	for _, test := range tests {
		if !strings.Contains(suite.String(), "\nfunc "+test+"(t *testing.T) {\n") {
			t.Errorf("nightly.sh has the test %s, which does not exist", test)
		}
	}
	_, matrix, _ := strings.Cut(read("../.github/workflows/nightly.yml"), "        part:\n")
	matrix, _, _ = strings.Cut(matrix, "    container:")
	inWorkflow := strings.Fields(strings.ReplaceAll(matrix, "        - ", ""))
	slices.Sort(parts)
	slices.Sort(inWorkflow)
	if !slices.Equal(parts, inWorkflow) {
		t.Errorf("nightly.sh has the parts\n%q, the workflow\n%q", parts, inWorkflow)
	}
}

// TestNightlyUpdatesBeforeItInstalls runs the part arm64 without QEMU, with programs that write down how they are called. A container that
// has just started has no lists of packages, so an install alone finds nothing.
func TestNightlyUpdatesBeforeItInstalls(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{
		"apt-get": `echo "apt-get $*" >&2; [ "$1 $2" != "$FAILS" ]`,
		"go":      `echo "go $1"`,
		"dirname": `exec /usr/bin/dirname "$@"`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const update, install = "apt-get -qq update", "apt-get -qq -y --no-install-recommends install qemu-user-static"
	for _, test := range []struct {
		fails string
		want  []string
	}{
		{"", []string{update, install, "go test"}},
		{"-qq update", []string{update}},
		{"-qq -y", []string{update, install}},
	} {
		cmd := exec.CommandContext(t.Context(), "/bin/bash", "nightly.sh", "--part", "arm64")
		cmd.Env = []string{"PATH=" + dir, "FAILS=" + test.fails}
		output, err := cmd.CombinedOutput()
		if lines := strings.Split(strings.TrimSpace(string(output)), "\n"); !slices.Equal(lines, test.want) || (err == nil) != (test.fails == "") {
			t.Errorf("%q fails: %q, %v, want %q", test.fails, lines, err, test.want)
		}
	}
}
