package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const source = `package access

const limit = 1 + 2

var a, b = 1, 2

func Phrase(n int) bool {
	return n == 1
}

func (a *Access) Recheck() bool {
	return a.n > 2
}

func (q Question[A]) IsDue() bool { return q.n < 1 }
`

const output = `Starting...
       LIVED CONDITIONALS_BOUNDARY at access.go:12:11
      KILLED CONDITIONALS_NEGATION at access.go:8:11
       LIVED CONDITIONALS_BOUNDARY at access.go:15:46
Killed: 1, Lived: 2, Not covered: 0
`

const late = `   TIMED OUT CONDITIONALS_BOUNDARY at access.go:12:11
   TIMED OUT CONDITIONALS_NEGATION at access.go:8:11
      KILLED CONDITIONALS_NEGATION at access.go:8:11
Killed: 4, Lived: 0, Not covered: 0
Timed out: 2, Not viable: 0
`

// A survivor fails the run unless the file has it, by the name of its function.
func TestSurvivors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "access")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("access.go", source)
	for name, test := range map[string]struct{ known, output, fails, prints string }{
		"none known":         {"", output, "Access.Recheck CONDITIONALS_BOUNDARY: 1 survive, 0 known\nQuestion.IsDue CONDITIONALS_BOUNDARY: 1 survive, 0 known", "Killed: 1"},
		"all known":          {"# why\naccess Access.Recheck CONDITIONALS_BOUNDARY 1 the same instant\naccess Question.IsDue CONDITIONALS_BOUNDARY 1 equal\n", output, "", "Killed: 1"},
		"of another package": {"fleet Access.Recheck CONDITIONALS_BOUNDARY 1 x\naccess Question.IsDue CONDITIONALS_BOUNDARY 1 equal\n", output, "Access.Recheck CONDITIONALS_BOUNDARY: 1 survive, 0 known", ""},
		"one is killed now":  {"access Access.Recheck CONDITIONALS_BOUNDARY 2 x\naccess Question.IsDue CONDITIONALS_BOUNDARY 1 equal\n", output, "", "Access.Recheck CONDITIONALS_BOUNDARY: 1 survive, 2 known: change the file"},
		"all are killed now": {"access Phrase CONDITIONALS_NEGATION 1 x\naccess Access.Recheck CONDITIONALS_BOUNDARY 1 y\naccess Question.IsDue CONDITIONALS_BOUNDARY 1 z\n", output, "", "Phrase CONDITIONALS_NEGATION: 0 survive, 1 known: change the file"},
		"not tried, as it is in a file of another part": {"access Phrase ARITHMETIC_BASE 1 x\naccess Access.Recheck CONDITIONALS_BOUNDARY 1 y\naccess Question.IsDue CONDITIONALS_BOUNDARY 1 z\n", output, "", "Not covered: 0\n$"},
		"timeouts":                              {"", late, "", "timeout: Access.Recheck CONDITIONALS_BOUNDARY: 1, not killed and not survived\ntimeout: Phrase CONDITIONALS_NEGATION: 1, not"},
		"a known one may time out":              {"access Access.Recheck CONDITIONALS_BOUNDARY 1 x\n", late, "", "not survived\n$"},
		"a known one is killed beside timeouts": {"access Phrase CONDITIONALS_NEGATION 2 x\n", late, "", "Phrase CONDITIONALS_NEGATION: 0 survive, 2 known: change the file"},
		"no reason":                             {"access Access.Recheck CONDITIONALS_BOUNDARY 1\n", output, "line 1: want PACKAGE", ""},
		"no count":                              {"access Access.Recheck CONDITIONALS_BOUNDARY x equal\n", output, "line 1: COUNT", ""},
		"no result":                             {"", "Starting...\n", "did the tests run?", ""},
		"nothing was killed":                    {"", "Killed: 0, Lived: 0, Not covered: 4\n", "did the tests run?", ""},
		"not compiled":                          {"", "Mutation testing completed in 12 seconds 585 milliseconds\nKilled: 294, Lived: 0, Not covered: 0\n", "294 mutants took 12.585s: the tests have not been compiled", ""},
		"compiled":                              {"", "Mutation testing completed in 1 minute 2 seconds\nKilled: 294, Lived: 0, Not covered: 0\n", "", "Killed: 294"},
		"some not tried":                        {"", "Killed: 10, Lived: 0, Not covered: 4\n", "4 mutants were not tried", ""},
		"a file that is gone":                   {"", "LIVED CONDITIONALS_BOUNDARY at gone.go:10:11\nKilled: 1, Lived: 1, Not covered: 0\n", "gone.go", ""},
		"some loop":                             {"", "Killed: 10, Lived: 0, Not covered: 0\nTimed out: 5, Not viable: 0\n", "", "Timed out: 5"},
		"too little time":                       {"", "Killed: 10, Lived: 0, Not covered: 0\nTimed out: 6, Not viable: 0\n", "timeout: 6 mutants, beside 10 that were judged", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var printed strings.Builder
			err := run([]string{dir, write("survivors.txt", test.known)}, strings.NewReader(test.output), &printed)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("%v, want %q", err, test.fails)
			}
			if !strings.Contains(printed.String()+"$", test.prints) {
				t.Errorf("printed %q, want %q", printed.String(), test.prints)
			}
		})
	}
	all, err := parseDeclarations(filepath.Join(dir, "access.go"))
	for line, want := range map[int]string{3: "limit", 5: "a", 8: "Phrase", 1: "-"} {
		if name := nameAt(all, line); name != want || err != nil {
			t.Errorf("line %d: %q, %v", line, name, err)
		}
	}
}

// The file names functions, constants and variables that exist.
func TestKnownSurvivorsExist(t *testing.T) {
	text, err := os.ReadFile("../survivors.txt")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseKnown(string(text), ""); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, pattern := range []string{"../../pkg/*/*.go", "../../cmd/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			all, err := parseDeclarations(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range all {
				names[filepath.Base(filepath.Dir(file))+" "+d.name] = true
			}
		}
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && !strings.HasPrefix(line, "#") && !names[fields[0]+" "+fields[1]] {
			t.Errorf("package %s has no %s", fields[0], fields[1])
		}
	}
}
