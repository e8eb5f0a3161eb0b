// Package tools tests the scripts of this directory.
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

// make lint refuses files that nobody meant to commit.
func TestTrackedFiles(t *testing.T) {
	const limit = 512 << 10
	script, err := filepath.Abs("tracked.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := func(command string, args ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), command, args...).CombinedOutput()
		return string(output), err
	}
	want := []string{"larger has 524289 bytes, more than 524288"}
	for name, content := range map[string]string{
		"ELF is a program": "\x7fELF\x02\x01\x01\x00", "PE is a program": "MZ\x90\x00\x03\x00",
		"Mach-O is a program": "\xcf\xfa\xed\xfe\x07\x00", "Mach-O for two is a program": "\xca\xfe\xba\xbe\x00\x00\x00\x02",
		".gitignore": "not tracked\n", "not tracked": "\x7fELF\x02\x01\x01\x00", "empty": "", "a text": "package main\n",
		"begins as PE":       "MZ is no program, but a text of more than sixty-four bytes: nothing in it is zero\n",
		"as large as can be": strings.Repeat("a", limit), "larger": strings.Repeat("a", limit+1),
	} {
		name, isProgram := strings.CutSuffix(name, " is a program")
		if isProgram {
			want = append(want, name+" is a program: remove it from git")
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}} {
		if output, err := run("git", args...); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	output, err := run(script)
	got := strings.Split(strings.TrimSpace(output), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if err == nil || !slices.Equal(got, want) {
		t.Errorf("got %v and %q, want a failure and %q", err, got, want)
	}
}

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
	// Lists have the form name=(word word), and patterns of tests name='^(word|word)$'.
	list := func(name string) []string {
		found := regexp.MustCompile(`(?m)^` + name + `=(?:'\^)?\((.*)\)(?:\$')?$`).FindStringSubmatch(read("nightly.sh"))
		if found == nil {
			t.Fatalf("nightly.sh has no list %s", name)
		}
		return strings.FieldsFunc(found[1], func(r rune) bool { return r == ' ' || r == '|' })
	}
	// base is the package of a part: the larger ones have two.
	base := func(part string) string { return strings.TrimSuffix(strings.TrimSuffix(part, "-a"), "-b") }
	parts, named := list("parts"), map[string]bool{
		"kubectl-refvol": true, // a module of its own, whose tests take a minute for each mutant; fleet and health decide for it
		"node":           true, // it puts the other packages together, and has no tests but those of the simulation and of the integration tier
	}
	for _, part := range list("packages") {
		parts = append(parts, "mutants-"+part)
		named[base(part)] = true
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
		var needs string
		switch kind, name, _ := strings.Cut(part, "-"); {
		case kind == "mutants":
			needs = "../*/" + base(name)
		case part == "kind-crio":
			needs = "../e2e/node-image/crio"
		case kind == "kind" && name != "long" && name != "newest":
			needs = "../e2e/node-image/kubernetes/versions/" + name + ".mod"
		default:
			continue
		}
		if found, err := filepath.Glob(needs); err != nil || len(found) == 0 {
			t.Errorf("%s: there is no %s (%v)", part, needs, err)
		}
	}
	// A misspelled test in one of these lists would run in the part crash.
	sources, err := filepath.Glob("../e2e/suites/crash/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var suite strings.Builder
	for _, file := range sources {
		suite.WriteString(read(file))
	}
	for _, test := range append(list("churn"), list("calls")...) {
		if !strings.Contains(suite.String(), "\nfunc "+test+"(t *testing.T) {\n") {
			t.Errorf("nightly.sh has the test %s, which does not exist", test)
		}
	}
	mains, err := filepath.Glob("../e2e/suites/*/main_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range mains {
		if dir := filepath.Base(filepath.Dir(file)); strings.Contains(read(file), "world.Main(") && !slices.Contains(parts, dir) {
			t.Errorf("nightly.sh has no part for the suite %s", dir)
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
