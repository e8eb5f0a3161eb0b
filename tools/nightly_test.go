package tools

import (
	"os"
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
		"node":           true, // it puts the other packages together, and has no tests but those of the simulation and of integration
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
	// A misspelled test in one of these lists would run in the part integration.
	sources, err := filepath.Glob("../e2e/suites/integration/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var suite strings.Builder
	for _, file := range sources {
		suite.WriteString(read(file))
	}
	for _, test := range append(list("alone"), list("faults")...) {
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
