package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/refvol/refvol/internal/sandbox"
)

// This program is run as the one that it tests, for the sandboxes.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == insideCommand {
		os.Exit(runInside(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// checkout makes a module with a package that has a test, and the tables for it.
func checkout(t *testing.T, table string) (root, tables string) {
	t.Helper()
	root = t.TempDir()
	tables = filepath.Join(root, "tables")
	for name, text := range map[string]string{
		"go.mod":            "module example.org/m\n\ngo 1.26\n",
		"sum/sum.go":        "package sum\n\nfunc Sum(a, b int) int {\n\treturn a + b\n}\n\nfunc Unused() int { return 1 }\n\nfunc Done() bool { return true }\n",
		"sum/sum_test.go":   "package sum\n\nimport \"testing\"\n\nfunc TestSum(t *testing.T) {\n\tif Sum(1, 2) != 3 {\n\t\tt.Error(\"no\")\n\t}\n}\n\nfunc TestDone(t *testing.T) {\n\tfor !Done() {\n\t}\n}\n",
		"red/red.go":        "package red\n\nconst Red = 1\n",
		"red/red_test.go":   "package red\n\nimport \"testing\"\n\nfunc TestRed(t *testing.T) { t.Error(\"always\") }\n",
		"tables/table.yaml": table,
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root, tables
}

// try runs the program on a table, and skips the test where there is no sandbox.
func try(t *testing.T, table string, args ...string) (output string, err error) {
	t.Helper()
	root, tables := checkout(t, table)
	var out bytes.Buffer
	err = run(t.Context(), append([]string{"-root", root, "-tables", tables}, args...), &out, &out)
	if strings.Contains(out.String(), sandbox.ErrUnavailable.Error()) {
		t.Skip(out.String())
	}
	return out.String(), err
}

const (
	difference = "- {name: difference, file: sum/sum.go, old: return a + b, new: return a - b}\n"
	unused     = "- {name: unused, file: sum/sum.go, old: return 1, new: return 2}\n"
)

func TestOutcomes(t *testing.T) {
	const all = "1 of 1 breaks were noticed"
	for name, tc := range map[string]struct {
		table string
		args  []string
		// want is in the output; with it all breaks have been noticed, or none.
		want    string
		noticed bool
	}{
		"noticed":               {difference, nil, "ok    sum: difference: noticed by TestSum (", true},
		"the tests stay green":  {unused, nil, "FAIL  sum: unused: the tests stay green (", false},
		"the patch is stale":    {"- {name: x, file: sum/sum.go, old: return a * b, new: y}\n", nil, "the old text is in sum/sum.go 0 times, want once", false},
		"the patch is unclear":  {"- {name: x, file: sum/sum.go, old: return, new: y}\n", nil, "the old text is in sum/sum.go 3 times, want once", false},
		"no such file":          {"- {name: x, file: sum/gone.go, old: a, new: b}\n", nil, "no such file", false},
		"it does not compile":   {"- {name: x, file: sum/sum.go, old: return a + b, new: return c}\n", nil, "undefined: c", false},
		"red without a break":   {"- {name: x, file: red/red.go, old: Red = 1, new: Red = 2}\n", nil, "FAIL  ./red: without a break: the tests fail: TestRed", false},
		"another package":       {"- {name: x, file: sum/sum.go, package: ./red, old: return a + b, new: return a}\n", nil, "FAIL  red: x: not tried", false},
		"the tests do not end":  {"- {name: x, file: sum/sum.go, old: 'return true', new: 'return false'}\n", []string{"-timeout=2s"}, "noticed by a timeout in TestDone (", true},
		"the tests kill it":     {"- {name: x, file: sum/sum.go, old: 'return true', new: 'panic(1)'}\n", nil, "noticed by TestDone (", true},
		"chosen by the name":    {difference + unused, []string{"-name=^diff"}, "ok    sum: difference: noticed by TestSum (", true},
		"chosen by the package": {difference + "- {name: x, file: red/red.go, old: Red = 1, new: Red = 2}\n", []string{"-package=sum"}, "ok    sum: difference: noticed by TestSum (", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := try(t, tc.table, tc.args...)
			if !strings.Contains(out, tc.want) || (err == nil) != tc.noticed || strings.Contains(out, all) != tc.noticed {
				t.Errorf("error %v; want %q in\n%s", err, tc.want, out)
			}
		})
	}
}

func TestTablesAreChecked(t *testing.T) {
	for name, tc := range map[string]struct{ table, want string }{
		"nothing chosen":   {"[]", "no break is chosen"},
		"empty":            {"", "no break is chosen"},
		"unknown field":    {"- {name: x, file: a.go, old: a, new: b, why: c}", "field why not found"},
		"no old":           {"- {name: x, file: a.go, new: b}", "name, file and old are required"},
		"equal":            {"- {name: x, file: a.go, old: b, new: \"b\\n\"}", "old and new are equal"},
		"outside":          {"- {name: x, file: ../a.go, old: a, new: b}", "leads out of the checkout"},
		"a strange module": {"- {name: x, file: a.go, package: k8s.io/api, old: a, new: b}", "must begin with ./"},
		"twice":            {difference + difference, "the name is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := try(t, tc.table); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q\n%s", err, tc.want, out)
			}
		})
	}
}

// TestBreaksApply checks the tables of the project, which takes no time: no patch is stale.
func TestBreaksApply(t *testing.T) {
	const root = "../.."
	breaks, err := readTables("table")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range breaks {
		if _, err := c.apply(root); err != nil {
			t.Errorf("%s: %s: %v", c.Package, c.Name, err)
		}
	}
}

// TestWhatCannotRunIsNoFailure has no binary to run: that says nothing of a break.
func TestWhatCannotRunIsNoFailure(t *testing.T) {
	if status, output, err := execute(t.Context(), t.TempDir(), "/no/such/program"); err == nil {
		t.Errorf("status %d, no error: %s", status, output)
	}
}
