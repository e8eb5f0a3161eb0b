package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever ends a part otherwise than well is a failure in the table.
func TestSession(t *testing.T) {
	for name, tc := range map[string]struct {
		tests   []string
		console string
		want    string
	}{
		"all well":            {nil, "--- PASS: TestA (0.1s)\n    --- PASS: TestA/x (0.1s)\n--- PASS: TestB (1s)\nPASS\n@end 0\n", "passed 2 tests"},
		"one skipped":         {nil, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\nPASS\n@end 0\n", "passed 1 tests, 1 skipped"},
		"lines end with CRLF": {[]string{"TestA"}, "--- PASS: TestA (0.1s)\r\nPASS\r\n@end 0\r\n", "passed 1 tests"},
		"one fails":           {nil, "--- PASS: TestA (0.1s)\n--- FAIL: TestB (1s)\nFAIL\n@end 1\n", "FAILED (status 1): TestB"},
		"a leak at the end":   {nil, "--- PASS: TestA (0.1s)\nFAIL\n@end 1\n", "FAILED (status 1): "},
		"killed":              {nil, "--- PASS: TestA (0.1s)\n@end 137\n", "FAILED (status 137): "},
		"no test":             {nil, "testing: warning: no tests to run\nPASS\n@end 0\n", "FAILED (status 0): "},
		"one is missing":      {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\nPASS\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"one wanted skips":    {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\nPASS\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"the machine stops":   {nil, "--- PASS: TestA (0.1s)\n", "FAILED (it did not end)"},
	} {
		t.Run(name, func(t *testing.T) {
			this := part{name: "this", tests: tc.tests}
			var failures strings.Builder
			s := &session{parts: []part{{name: "other"}, this}, failures: &failures}
			if err := s.read(strings.NewReader("noise\n@kernel 6.1\n@begin 1\n" + tc.console)); err != nil {
				t.Fatal(err)
			}
			if len(s.outcomes) != 1 || s.outcomes[0].result != tc.want || s.outcomes[0].part != "this" || s.outcomes[0].kernel != "6.1" {
				t.Errorf("got %+v, want %q", s.outcomes, tc.want)
			}
			// Whoever reads the output of CI sees why a part failed, and not only that it did.
			if strings.Contains(failures.String(), "---") == strings.HasPrefix(tc.want, passed) && name != "no test" {
				t.Errorf("printed %q", failures.String())
			}
		})
	}
}

func TestSessionOfAnUnknownPart(t *testing.T) {
	s := &session{parts: []part{{name: "this"}}}
	if err := s.read(strings.NewReader("@begin 1\n")); err == nil {
		t.Error("no error")
	}
}

// A test that was renamed is missed here, and not only in a machine.
func TestThePlansTestsExist(t *testing.T) {
	plan, err := choose(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	short, err := choose(nil, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range append(plan, short...) {
		for _, m := range k.machines {
			for _, p := range m.parts {
				sources := testsOf(t, filepath.Join("..", "..", "..", p.module, p.pkg))
				for _, name := range p.tests {
					if !strings.Contains(sources, "\nfunc "+name+"(t *testing.T)") {
						t.Errorf("%s: no test of %s is called %s", p.name, p.pkg, name)
					}
				}
			}
		}
	}
}

// testsOf returns the text of all test files of a package.
func testsOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has the tests %v, %v", dir, files, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

func TestChoose(t *testing.T) {
	if _, err := choose([]string{"2.4"}, false); err == nil {
		t.Error("a kernel that is not known is no error")
	}
	if plan, err := choose([]string{"6.12"}, false); err != nil || len(plan) != 1 || plan[0].name != "6.12" {
		t.Errorf("got %+v, %v", plan, err)
	}
}

// A program that ends in the middle of a line has an outcome too.
func TestEndAfterHalfALine(t *testing.T) {
	script := marked(0, "printf -- '--- PASS: TestA (0.1s)\nhalf a line'; false")
	console, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{parts: []part{{name: "a"}}, failures: t.Output()}
	if err := s.read(bytes.NewReader(console)); err != nil || len(s.outcomes) != 1 || s.outcomes[0].result != "FAILED (status 1): " {
		t.Errorf("%v, %+v of %q", err, s.outcomes, console)
	}
}
