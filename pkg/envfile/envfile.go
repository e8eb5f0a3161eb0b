// Package envfile turns variables into the content of an env file.
//
// It owns the syntax of the formats: which names and values each can hold, and how they are quoted. It is pure: no file, clock or network.
// It must not know where variables come from.
package envfile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/refvol/refvol/pkg/volume"
)

// Variable is one variable of an env file. Formatting or marshalling a Variable never shows its value, with the same exception as for a
// volume.Object.
type Variable struct {
	Name  string
	Value string `json:"-"`
}

// String names the variable and the size of its value, and does not show the value.
func (v Variable) String() string { return fmt.Sprintf("%s (%d bytes)", v.Name, len(v.Value)) }

// Format does not show the value, for every verb.
func (v Variable) Format(s fmt.State, _ rune) { fmt.Fprint(s, v.String()) }

// MarshalJSON does not show the value in JSON, and so also not in structured logs.
func (v Variable) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// Encode returns the content of an env file that sets the variables in the given order. skipped has the names of the variables that the
// format cannot hold, sorted and without duplicates. Each variable ends its line, or with a NUL byte in a volume.EnvEnviron file. Without
// variables the content is empty. An unknown format is treated as volume.EnvDotenv. No name may be there twice, because readers treat that
// in different ways.
//
// No format holds a value that is not UTF-8 or has a NUL byte. A volume.EnvEnviron file holds all others, and all names that Kubernetes
// allows. The other formats don't hold a name with other characters than letters, digits and underscores, or a name that starts with a
// digit. A volume.EnvShell file does not hold the variables that a shell uses for itself, and a volume.EnvDotenv file does not hold the few
// values that no quoting passes through godotenv unchanged.
//
// A value never sets another variable, in any shell and in any of the parsers that the dotenv quoting supports.
//
// Encode is safe for concurrent use.
func Encode(format volume.EnvFormat, variables []Variable) (data []byte, skipped []string) {
	end := byte('\n')
	if format == volume.EnvEnviron {
		end = 0
	}
	for i := range variables {
		v := &variables[i]
		quoted, ok := quote(format, v)
		if !ok {
			skipped = append(skipped, v.Name)
			continue
		}
		data = append(append(append(append(data, v.Name...), '='), quoted...), end)
	}
	slices.Sort(skipped)
	return data, slices.Compact(skipped)
}

// quote returns a variable's value in a format. It returns false if the format cannot hold the variable.
func quote(format volume.EnvFormat, v *Variable) (string, bool) {
	switch {
	case !utf8.ValidString(v.Value), strings.Contains(v.Value, "\x00"):
		return "", false
	case format == volume.EnvEnviron:
		return v.Value, len(validation.IsRelaxedEnvVarName(v.Name)) == 0
	case len(validation.IsCIdentifier(v.Name)) > 0:
		return "", false
	case format == volume.EnvShell:
		return quoteShell(v.Value), !keptByShell(v.Name)
	default:
		return quoteDotenv(v.Value)
	}
}
