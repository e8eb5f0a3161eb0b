package envfile

import (
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/refvol/refvol/pkg/envfile"
)

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
