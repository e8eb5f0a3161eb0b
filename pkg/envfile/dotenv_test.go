package envfile

import (
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

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
