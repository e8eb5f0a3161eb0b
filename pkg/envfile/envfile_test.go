package envfile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func TestEncodeNames(t *testing.T) {
	for name, want := range map[string]bool{
		"A": true, "z": true, "_": true, "_A": true, "a1_B2": true, "PATH": true, "LC_ALL": true,
		"__proto__": true, "export": true, "if": true,
		"": false, "1": false, "1A": false, "a.b": false, "a-b": false, "A ": false, " A": false,
		"A\n": false, "A=": false, "é": false, "A\x00": false, "A;id": false, "$A": false, "a[0]": false,
	} {
		data, skipped := Encode(volume.EnvDotenv, []Variable{{name, "x"}})
		if got := len(skipped) == 0; got != want || (len(data) > 0) != want {
			t.Errorf("name %q: Encode gives %q and skips %q; want it written: %t", name, data, skipped, want)
		}
	}
}

// TestEncodeEnviron: the content is that of /proc/PID/environ, for every name and value that a container can have.
func TestEncodeEnviron(t *testing.T) {
	data, skipped := Encode(volume.EnvEnviron, []Variable{
		{"spring.datasource.url", "jdbc:x?a=b"},
		{"UID", "1"},
		{"2-b", "it's\n$(A) \"é\""},
		{"IFS", ""},
		{"", "x"},
		{"A=B", "x"},
		{"é", "x"},
		{"N", "\x00"},
		{"U", "\xff"},
	})
	if want := "spring.datasource.url=jdbc:x?a=b\x00UID=1\x002-b=it's\n$(A) \"é\"\x00IFS=\x00"; string(data) != want {
		t.Errorf("%q, not %q", data, want)
	}
	if want := []string{"", "A=B", "N", "U", "é"}; !slices.Equal(skipped, want) {
		t.Errorf("skips %q, not %q", skipped, want)
	}
}

func TestEncodeReportsSkipped(t *testing.T) {
	for _, format := range []volume.EnvFormat{volume.EnvDotenv, volume.EnvShell} {
		data, skipped := Encode(format, []Variable{
			{"Z", "nul\x00"},
			{"a.b", "x"},
			{"GOOD", "x"},
			{"K", "\xff\xfe"},
			{"a.b", "y"},
			{"B", "\xed\xa0\x80"},
			{"LAST", "z"},
		})
		if want := []string{"B", "K", "Z", "a.b"}; !slices.Equal(skipped, want) {
			t.Errorf("%s: Encode skips %q; want %q", format, skipped, want)
		}
		if lines := strings.Split(string(data), "\n"); len(lines) != 3 ||
			!strings.HasPrefix(lines[0], "GOOD=") || !strings.HasPrefix(lines[1], "LAST=") {
			t.Errorf("%s: Encode gives %q; want GOOD and LAST", format, data)
		}
	}
}

func TestVariableIsRedacted(t *testing.T) {
	v := Variable{"NAME", "canary"}
	marshalled := must.Get(json.Marshal(map[string]any{"v": v, "p": &v, "s": []Variable{v}}))(t)
	texts := []string{string(marshalled), v.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, v), fmt.Sprintf(verb, &v), fmt.Sprintf(verb, []Variable{v}))
	}
	for _, text := range texts {
		if strings.Contains(text, "canary") || strings.Contains(text, "63616e617279") {
			t.Errorf("the value is in %q", text)
		}
		if !strings.Contains(text, "NAME") {
			t.Errorf("the name is not in %q", text)
		}
	}
}

// TestDotenvLines: a reader of single lines sees no variables in a value, except for values that a parser would read wrong on one line. A
// value with quotes and no expansion is bare, unless a parser would trim it, cut it off or see it as quoted.
func TestDotenvLines(t *testing.T) {
	for value, want := range map[string]string{
		"a\nV1=x\n":          `"a\nV1=x\n"`,
		"a\r\nb":             `"a\r\nb"`,
		"it's\n#a":           `"it's\n#a"`,
		"it's\n\"a\" b":      `"it's\n\"a\" b"`,    // single quotes can't hold it
		"{\n\"\\\\d\": 1}":   `"{\n\"\\\\d\": 1}"`, // python-dotenv reads \\ in single quotes as one
		"{\n\"a\": 1}":       "'{\n\"a\": 1}'",     // node's dotenv reads \" with its backslash
		"a\n\\d+":            "'a\n\\d+'",          // and \\ as two
		"a\n$b":              "'a\n$b'",            // python-dotenv reads \$ with its backslash
		"a\n\\\\ $b":         "'a\n\\\\ $b'",
		"a\n\\\\\"":          "'a\n\\\\\"'", // godotenv reads no escaped quote at the end
		`it's "a"`:           `it's "a"`,
		`{"a": "it's"}`:      `{"a": "it's"}`,
		`\d it's`:            `\d it's`,
		"\tit's \"a\" b":     `"` + "\t" + `it's \"a\" b"`, // parsers trim a tab and other spaces
		"\u00a0it's \"a\" b": `"` + "\u00a0" + `it's \"a\" b"`,
		"it's\t\"a\" b":      `"it's` + "\t" + `\"a\" b"`,
		" it's \"a\" b":      `" it's \"a\" b"`,
		`"it's" a`:           `"\"it's\" a"`, // looks quoted
		`'it' is "a" b`:      `"'it' is \"a\" b"`,
		"`it's` \"a\" b":     "\"`it's` \\\"a\\\" b\"",
		`it's "a" `:          `"it's \"a\" "`,
		`it's "a" #b`:        `"it's \"a\" #b"`, // has a comment
	} {
		data, skipped := Encode(volume.EnvDotenv, []Variable{{"V", value}})
		if got := strings.TrimSuffix(strings.TrimPrefix(string(data), "V="), "\n"); got != want || skipped != nil {
			t.Errorf("%q is written as %s, want %s", value, got, want)
		}
	}
}

func TestShellSkipsItsOwnVariables(t *testing.T) {
	// One for each reason. Tests with real shells check that the list is complete.
	kept := []string{"BASH_COMMAND", "GROUPS", "HISTFILESIZE", "IFS", "OPTIND", "PPID", "PS4", "RANDOM", "SECONDS", "SHLVL", "UID", "_"}
	taken := []string{"BASH_ENV", "HOME", "LD_PRELOAD", "PATH", "PWD", "optind", "__"}
	var variables []Variable
	for _, name := range slices.Concat(kept, taken) {
		variables = append(variables, Variable{name, "x"})
	}
	if _, skipped := Encode(volume.EnvShell, variables); !slices.Equal(skipped, kept) {
		t.Errorf("Encode skips %q; want %q", skipped, kept)
	}
	if _, skipped := Encode(volume.EnvDotenv, variables); skipped != nil {
		t.Errorf("Encode skips %q in a dotenv file; want none", skipped)
	}
}
