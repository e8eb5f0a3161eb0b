package envfile

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/joho/godotenv"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// parsers are the dotenv parsers that read back whatever is written.
func parsers() map[string]func(string) (map[string]string, error) {
	return map[string]func(string) (map[string]string, error){
		"godotenv":   godotenv.Unmarshal,
		"compose-go": func(s string) (map[string]string, error) { return dotenv.Parse(strings.NewReader(s)) },
	}
}

// read encodes variables, and compares what each parser makes of them. It returns the
// skipped names.
func read(t *testing.T, variables []envfile.Variable) []string {
	t.Helper()
	data, skipped := envfile.Encode(volume.EnvDotenv, variables)
	want := slices.DeleteFunc(slices.Clone(variables), func(v envfile.Variable) bool { return slices.Contains(skipped, v.Name) })
	for name, parse := range parsers() {
		got, err := parse(string(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		compare(t, got, want)
	}
	return skipped
}

func TestParsersRead(t *testing.T) {
	for class, value := range map[string]string{
		"empty": "", "plain": "a-b.c/d:e=f@g", "spaces": "  a  ", "hash": "a#b", "space and hash": "a #b",
		"dollar": "a$V0 5$", "braces": "${V0}", "dollars": "$$", "command": "$(id)", "backslash": `C:\dir`,
		"two backslashes": `\\host\x`, "backslash at the end": `a b\`, "single quote": "it's", "double quote": `"a"`,
		"backtick": "`id`", "both quotes": `it's "x"`, "both quotes and line": "it's\n\"x\"\n", "quote and dollar": `it's $5`,
		"line": "a\nV0=x\n", "PEM": "-----BEGIN-----\nMII=\n-----END-----\n", "JSON": "{\"a\": \"$b\\n\"\n}\n",
		"JSON with two backslashes": "{\"a\": \"\\\\n\"\n}\n", "DOS lines": "a\r\nb\r\n", "carriage return": "a\rb",
		"carriage return and quote": "\"a\"\rb", "tab": "\ta\t", "backslash n": `a\nb`, "unicode": "é✓😀",
		"line separators": "a\u0085b\u2028c\u2029d", "no-break spaces": "\u00a0a\ufeff", "control": "\x01\x1b\x7f",
		"export": "export V0=x", "long": strings.Repeat("it's $x\n", 1<<14),
	} {
		t.Run(class, func(t *testing.T) {
			skipped := read(t, []envfile.Variable{{Name: "V0", Value: "a'b"}, {Name: "V", Value: value}, {Name: "V1", Value: `c "d"`}})
			if skipped != nil {
				t.Errorf("%q were skipped", skipped)
			}
		})
	}
}

func TestParsersReadRandomValues(t *testing.T) {
	dice.Each(t, 3, readRandomValues)
}

func readRandomValues(t *testing.T, random *rand.Rand) {
	for range 30 {
		variables := randomVariables(random, 100)
		for _, name := range read(t, variables) {
			i := slices.IndexFunc(variables, func(v envfile.Variable) bool { return v.Name == name })
			if value := variables[i].Value; !strings.HasSuffix(value, `\`) && !strings.HasSuffix(value, `"`) {
				t.Errorf("%q was skipped", value)
			}
		}
	}
}

// tokens are what values are made of: what some reader of some format takes for
// syntax, and a little that none does.
func tokens() []string {
	return []string{
		"'", `"`, "`", `\`, "$", "#", " ", "\n", "\r", "\t", "=", ":", ";", "&", "|", "!", "~", "*", "{", "}", "(", ")",
		"a", "n", "r", "0", "é", "😀", "\u0085", "\u00a0", "\u2028", "\ufeff", "\x01", "\x1b", "\x7f", "\v",
		"\nV1=x\n", "V0", "$V0", "${V0}", "${V0:-x}", "$(id)", "`id`", "export ", "''", `""`, `\'`, `\"`, `\\`, `\n`,
	}
}

func randomVariables(random *rand.Rand, n int) []envfile.Variable {
	tokens := tokens()
	variables := make([]envfile.Variable, n)
	for i := range variables {
		var value strings.Builder
		for range random.IntN(8) {
			value.WriteString(tokens[random.IntN(len(tokens))])
		}
		variables[i] = envfile.Variable{Name: numbered(i), Value: value.String()}
	}
	return variables
}

func numbered(i int) string { return "V" + strconv.Itoa(i) }
