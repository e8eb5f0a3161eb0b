package main

import (
	"os"
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
		"all well":            {nil, "--- PASS: TestA (0.1s)\n    --- PASS: TestA/x (0.1s)\n--- PASS: TestB (1s)\n@end 0\n", "passed 2 tests"},
		"one skipped":         {nil, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\n@end 0\n", "passed 1 tests, 1 skipped"},
		"a figure":            {nil, "    x_test.go:7: it took 5 s\n--- PASS: TestA (0.1s)\n@end 0\n", "passed 1 tests: 5 s"},
		"lines end with CRLF": {[]string{"TestA"}, "--- PASS: TestA (0.1s)\r\n@end 0\r\n", "passed 1 tests"},
		"one fails":           {nil, "--- PASS: TestA (0.1s)\n--- FAIL: TestB (1s)\n@end 1\n", "FAILED (status 1): TestB"},
		"a leak at the end":   {nil, "--- PASS: TestA (0.1s)\nFAIL\n@end 1\n", "FAILED (status 1): "},
		"killed":              {nil, "--- PASS: TestA (0.1s)\n@end 137\n", "FAILED (status 137): "},
		"no test":             {nil, "testing: warning: no tests to run\n@end 0\n", "FAILED (status 0): "},
		"one is missing":      {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"one wanted skips":    {[]string{"TestA", "TestB"}, "--- PASS: TestA (0.1s)\n--- SKIP: TestB (1s)\n@end 0\n", "FAILED (status 0): TestB did not run"},
		"the machine stops":   {nil, "--- PASS: TestA (0.1s)\n", "FAILED (it did not end)"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &session{parts: []part{{name: "other"}, {name: "this", tests: tc.tests, figure: "took (.*)"}}}
			if err := s.read(strings.NewReader("noise\n@kernel 6.1\n@begin 1\n" + tc.console)); err != nil {
				t.Fatal(err)
			}
			if len(s.outcomes) != 1 || s.outcomes[0].result != tc.want || s.outcomes[0].part != "this" || s.outcomes[0].kernel != "6.1" {
				t.Errorf("got %+v, want %q", s.outcomes, tc.want)
			}
		})
	}
}

// Figures of one part are compared between kernels, and what differs is said.
func TestCompare(t *testing.T) {
	outcomes := []outcome{
		{kernel: "6.1", part: "cost", result: "passed 1 tests: near_s=1.00 far_s=2.5 never_s=0"},
		{kernel: "6.12", part: "cost", result: "passed 1 tests: near_s=1.19 far_s=2.0 never_s=1"},
		{kernel: "6.12", part: "other", result: "passed 1 tests: far_s=9"},
	}
	var said strings.Builder
	compare(&said, outcomes)
	for _, want := range []string{
		"cost: near_s: 1.00 to 1.19, a factor of 1.19, within 1.2\n",
		"cost: far_s: 2.00 to 2.50, a factor of 1.25, NOT within 1.2\n",
		"cost: never_s: 0.00 to 1.00, a factor of +Inf, NOT within 1.2\n",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("got\n%swithout\n%s", said.String(), want)
		}
	}
	if n := strings.Count(said.String(), "\n"); n != 3 {
		t.Errorf("%d lines, want 3", n)
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
	plan, err := choose(nil, false, "")
	if err != nil {
		t.Fatal(err)
	}
	short, err := choose(nil, true, "")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, k := range append(plan, short...) {
		for _, m := range k.machines {
			for _, p := range m.parts {
				dir := filepath.Join("..", "..", "..", p.module, p.pkg)
				if sources[dir] == "" {
					sources[dir] = testsOf(t, dir)
				}
				for _, name := range p.tests {
					if !strings.Contains(sources[dir], "\nfunc "+name+"(t *testing.T)") {
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
	if _, err := choose([]string{"2.4"}, false, ""); err == nil {
		t.Error("a kernel that is not known is no error")
	}
	if _, err := choose(nil, false, "("); err == nil {
		t.Error("a pattern that is none is no error")
	}
	plan, err := choose([]string{"6.12"}, false, "^SELinux")
	if err != nil {
		t.Fatal(err)
	}
	if len(plan) != 1 || plan[0].name != "6.12" || len(plan[0].machines) != 1 || len(plan[0].machines[0].parts) != 2 {
		t.Errorf("got %+v", plan)
	}
}
