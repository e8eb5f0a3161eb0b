// Package envfile turns variables into the content of an env file.
//
// It owns the syntax of the formats: which names and values each can hold, and how
// they are quoted. It is pure: no file, clock or network. It must not know where
// variables come from.
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

// Variable is one variable of an env file. Formatting or marshalling a Variable never
// shows its value, as far as that holds for a volume.Object.
type Variable struct {
	Name  string
	Value string `json:"-"`
}

// String names the variable and the size of its value, and never shows the value.
func (v Variable) String() string { return fmt.Sprintf("%s (%d bytes)", v.Name, len(v.Value)) }

// Format keeps the value out of every verb.
func (v Variable) Format(s fmt.State, _ rune) { fmt.Fprint(s, v.String()) }

// MarshalJSON keeps the value out of JSON, so also out of structured logs.
func (v Variable) MarshalJSON() ([]byte, error) { return json.Marshal(v.String()) }

// Encode returns the content of an env file that sets the variables in the order
// given, and the names of those that the format can't hold, sorted, each once. Every
// variable ends its own line; without any the content is empty. A format that is not
// volume.EnvShell is taken for volume.EnvDotenv. No name may be there twice: what a
// reader makes of that is up to it.
//
// Neither format holds a name that is not of letters, digits and underscores with no
// digit first, nor a value that is not UTF-8 or has a NUL. A volume.EnvShell file
// holds any other value, but not the variables that a shell keeps for itself. A
// volume.EnvDotenv file lacks the few values that no quoting carries through
// godotenv.
//
// What a value holds never sets another variable, in no shell and in none of the
// parsers that the package's dotenv quoting is made for.
//
// Encode is safe for concurrent use.
func Encode(format volume.EnvFormat, variables []Variable) (data []byte, skipped []string) {
	for i := range variables {
		v := &variables[i]
		quoted, ok := quote(format, v)
		if !ok {
			skipped = append(skipped, v.Name)
			continue
		}
		data = append(append(append(append(data, v.Name...), '='), quoted...), '\n')
	}
	slices.Sort(skipped)
	return data, slices.Compact(skipped)
}

// quote returns how a format writes a variable's value, and false if it can't hold the variable.
func quote(format volume.EnvFormat, v *Variable) (string, bool) {
	switch {
	case len(validation.IsCIdentifier(v.Name)) > 0, !utf8.ValidString(v.Value), strings.Contains(v.Value, "\x00"):
		return "", false
	case format == volume.EnvShell:
		return quoteShell(v.Value), !keptByShell(v.Name)
	default:
		return quoteDotenv(v.Value)
	}
}
