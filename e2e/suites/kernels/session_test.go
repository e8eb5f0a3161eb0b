package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		"no figure":           {nil, "--- PASS: TestF (0.1s)\n@end 0\n", "FAILED (status 0): no log of x_test.go has took (.*)"},
		"another's figure":    {nil, "    y_test.go:7: it took 5 s\n--- PASS: TestF (0.1s)\n@end 0\n", "FAILED (status 0): no log of x_test.go has took (.*)"},
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
			this := part{name: "this", tests: tc.tests}
			if strings.Contains(name, "figure") {
				this.figure, this.source = "took (.*)", "x_test.go"
			}
			s := &session{parts: []part{{name: "other"}, this}}
			if err := s.read(strings.NewReader("noise\n@kernel 6.1\n@begin 1\n" + tc.console)); err != nil {
				t.Fatal(err)
			}
			if len(s.outcomes) != 1 || s.outcomes[0].result != tc.want || s.outcomes[0].part != "this" || s.outcomes[0].kernel != "6.1" {
				t.Errorf("got %+v, want %q", s.outcomes, tc.want)
			}
		})
	}
}

// Whoever reads the output of CI sees why a test failed, and not only that it did.
func TestFailures(t *testing.T) {
	for name, tc := range map[string]struct{ console, want string }{
		"one that passes": {"=== RUN   TestA\n    a_test.go:1: said\n--- PASS: TestA (0.1s)\n", ""},
		"one that fails":  {"=== RUN   TestA\n    a_test.go:1: said\n        more\n--- FAIL: TestA (0.1s)\nFAIL\n", "--- FAIL: TestA (0.1s)\n    a_test.go:1: said\n        more\n"},
		"a part of one": {
			"=== RUN   TestA\n=== RUN   TestA/x\n    a_test.go:1: of x\n=== NAME  TestA\n    a_test.go:2: of A\n--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/x (0.1s)\n",
			"--- FAIL: TestA (0.1s)\n    a_test.go:2: of A\n    --- FAIL: TestA/x (0.1s)\n    a_test.go:1: of x\n",
		},
		"beside another one": {
			"=== RUN   TestA\n=== PAUSE TestA\n=== RUN   TestB\n    b_test.go:1: of B\n=== CONT  TestA\n    a_test.go:1: of A\n--- FAIL: TestA (0.1s)\n--- PASS: TestB (0.1s)\n",
			"--- FAIL: TestA (0.1s)\n    a_test.go:1: of A\n",
		},
		"a panic":     {"=== RUN   TestA\n--- FAIL: TestA (0.1s)\npanic: x\n\ngoroutine 1:\n", "--- FAIL: TestA (0.1s)\npanic: x\n\ngoroutine 1:\n"},
		"a leak":      {"=== RUN   TestA\n--- PASS: TestA (0.1s)\nPASS\nFAIL: found unexpected goroutines:\n[x]\n", "FAIL: found unexpected goroutines:\n[x]\n"},
		"a long text": {"=== RUN   TestA\n" + strings.Repeat("x\n", 1000) + "--- FAIL: TestA (0.1s)\n", "--- FAIL: TestA (0.1s)\n" + strings.Repeat("x\n", saidLines)},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			f := &failures{out: &got, said: map[string][]string{}}
			for line := range strings.Lines(tc.console) {
				f.line(strings.TrimSuffix(line, "\n"))
			}
			if got.String() != tc.want {
				t.Errorf("got\n%swant\n%s", got.String(), tc.want)
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
	plan, err := choose(nil, false, "")
	if err != nil {
		t.Fatal(err)
	}
	short, err := choose(nil, true, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := check(filepath.Join("..", "..", ".."), append(plan, short...)); err != nil {
		t.Error(err)
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

// A plan that names a package or a file that is missing is refused before a machine boots.
func TestCheck(t *testing.T) {
	for name, p := range map[string]part{
		"gone_test.go": {name: "a", module: "e2e", pkg: "./suites/kernels", figure: "x (.*)", source: "gone_test.go"},
		"suites/gone":  {name: "b", module: "e2e", pkg: "./suites/gone"},
	} {
		err := check(filepath.Join("..", "..", ".."), []kernel{{machines: []machine{{parts: []part{p}}}}})
		if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
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
	if len(plan) != 1 || plan[0].name != "6.12" || len(plan[0].machines) != 1 || len(plan[0].machines[0].parts) != 3 {
		t.Errorf("got %+v", plan)
	}
}

// A program that ends in the middle of a line has an outcome too.
func TestEndAfterHalfALine(t *testing.T) {
	script := marked(0, "printf -- '--- PASS: TestA (0.1s)\nhalf a line'; false")
	console, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &session{parts: []part{{name: "a"}}}
	if err := s.read(bytes.NewReader(console)); err != nil || len(s.outcomes) != 1 || s.outcomes[0].result != "FAILED (status 1): " {
		t.Errorf("%v, %+v of %q", err, s.outcomes, console)
	}
}

// What came from Debian is got again after a week.
func TestDebianIsGotAgain(t *testing.T) {
	r := &runner{root: t.TempDir(), cache: t.TempDir(), work: t.TempDir()}
	script := filepath.Join(r.root, "e2e", "suites", "kernels", "debian.sh")
	got := filepath.Join(r.root, "got")
	text := "#!/bin/sh\nmkdir \"$3\" && echo x >>" + got + " && cp " + got + " \"$3/vmlinuz\"\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(script), 0o755), os.WriteFile(script, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		age  time.Duration
		want string
	}{{0, "x\n"}, {keptFor - time.Hour, "x\n"}, {keptFor, "x\nx\n"}} {
		dir := filepath.Join(r.cache, "kernel-sid")
		then := time.Now().Add(-step.age)
		if err := os.Chtimes(dir, then, then); err != nil && step.age > 0 {
			t.Fatal(err)
		}
		if _, err := r.debian(t.Context(), "kernel", "sid"); err != nil {
			t.Fatal(err)
		}
		if kernel, err := os.ReadFile(filepath.Join(dir, "vmlinuz")); err != nil || string(kernel) != step.want {
			t.Errorf("after %s: %q, %v, want %q", step.age, kernel, err, step.want)
		}
	}
}
