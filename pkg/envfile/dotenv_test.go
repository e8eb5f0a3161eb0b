package envfile

import (
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

// TestDotenvLines: a reader of single lines sees no variables in a value, except for values that a parser would read wrong on one line.
func TestDotenvLines(t *testing.T) {
	for value, want := range map[string]string{
		"a\nV1=x\n":        `"a\nV1=x\n"`,
		"a\r\nb":           `"a\r\nb"`,
		"it's\n#a":         `"it's\n#a"`,
		"it's\n\"a\" b":    `"it's\n\"a\" b"`,    // single quotes can't hold it
		"{\n\"\\\\d\": 1}": `"{\n\"\\\\d\": 1}"`, // python-dotenv reads \\ in single quotes as one
		"{\n\"a\": 1}":     "'{\n\"a\": 1}'",     // node's dotenv reads \" with its backslash
		"a\n\\d+":          "'a\n\\d+'",          // and \\ as two
		"a\n$b":            "'a\n$b'",            // python-dotenv reads \$ with its backslash
		"a\n\\\\ $b":       "'a\n\\\\ $b'",
		"a\n\\\\\"":        "'a\n\\\\\"'", // godotenv reads no escaped quote at the end
	} {
		data, skipped := Encode(volume.EnvDotenv, []Variable{{"V", value}})
		if got := strings.TrimSuffix(strings.TrimPrefix(string(data), "V="), "\n"); got != want || skipped != nil {
			t.Errorf("%q is written as %s, want %s", value, got, want)
		}
	}
}
