package main

import (
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// repo is the directory of the module, as seen from this package.
const repo = "../.."

// TestLimitsAreDocumented holds the values in docs/limits.md that no flag sets against the code. A row is found
// by the text with which it begins.
func TestLimitsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repo, "docs", "limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	for begin, of := range map[string][2]string{
		"names and values of all attributes":                     {"pkg/volume", "MaxAttributesSize"},
		"ConfigMaps and Secrets":                                 {"pkg/volume", "MaxReferences"},
		"volumes of this driver in one pod":                      {"pkg/publisher", "maxPodVolumes"},
		"bytes of a path":                                        {"pkg/volume", "maxPathLength"},
		"bytes of a path's element":                              {"pkg/volume", "maxElementLength"},
		"bytes of the names and values in all env files":         {"pkg/payload", "MaxEnvBytes"},
		"an update of a mounted volume":                          {"pkg/publisher", "syncTime"},
		"how long a superseded generation stays for its readers": {"pkg/publisher", "pruneTime"},
		"a watch; up to as long again at random":                 {"pkg/manager", "watchTime"},
		"until `Unknown`, `Publishing`":                          {"pkg/report", "patience"},
	} {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(begin) + `[^|]*\| ([\d,]+(?: \w+)?) \|`).FindStringSubmatch(string(text))
		if row == nil {
			t.Errorf("docs/limits.md has no row %q", begin)
			continue
		}
		if want, got := quantity(t, row[1]), constantOf(t, filepath.Join(repo, of[0]), of[1]); got != want {
			t.Errorf("docs/limits.md says %s of %s.%s, which is %d", row[1], of[0], of[1], got)
		}
	}
}

// quantity reads a number with a unit: of bytes, of time in nanoseconds, or none.
func quantity(t *testing.T, text string) int64 {
	t.Helper()
	number, unit, _ := strings.Cut(strings.ReplaceAll(text, ",", ""), " ")
	n, err := strconv.ParseInt(number, 10, 64)
	units := map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "ms": int64(time.Millisecond), "s": int64(time.Second)}
	if err != nil || units[unit] == 0 {
		t.Fatalf("%q is no quantity", text)
	}
	return n * units[unit]
}

// constantOf evaluates a constant of a package from its text: it may be made of numbers,
// durations, and constants of the same package or of those below pkg.
func constantOf(t *testing.T, dir, name string) int64 {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	definition := regexp.MustCompile(`(?m)^\s*(?:const )?` + name + `\s+=\s+([^/\n]+(?:/ ?\w+)?)`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := definition.FindSubmatch(text); found != nil && !strings.HasSuffix(file, "_test.go") {
			return evaluate(t, dir, strings.TrimSpace(string(found[1])))
		}
	}
	t.Fatalf("%s has no constant %s", dir, name)
	return 0
}

func evaluate(t *testing.T, dir, expression string) int64 {
	t.Helper()
	names := regexp.MustCompile(`(?:(\w+)\.)?([A-Za-z]\w*)`)
	durations := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute}
	expression = names.ReplaceAllStringFunc(expression, func(match string) string {
		parts := names.FindStringSubmatch(match)
		switch from, name := parts[1], parts[2]; from {
		case "time":
			return strconv.FormatInt(int64(durations[name]), 10)
		case "":
			return strconv.FormatInt(constantOf(t, dir, name), 10)
		default:
			return strconv.FormatInt(constantOf(t, filepath.Join(repo, "pkg", from), name), 10)
		}
	})
	value, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	n, exact := constant.Int64Val(value.Value)
	if !exact {
		t.Fatalf("%s is no integer", expression)
	}
	return n
}
