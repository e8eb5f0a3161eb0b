package envfile

import (
	"slices"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

func TestDotenvQuoting(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"empty", "", `A=`},
		{"plain", "aZ09%+,-./:=@_", `A=aZ09%+,-./:=@_`},
		{"spaces", "  a b  ", `A='  a b  '`},
		{"hash", "a #b", `A='a #b'`},
		{"dollar", "$a ${B} $(c) $$ $", `A='$a ${B} $(c) $$ $'`},
		{"double quotes", `"a"`, `A='"a"'`},
		{"backticks", "`a`", "A='`a`'"},
		{"backslash", `C:\dir`, `A='C:\dir'`},
		{"unicode", "é\u00a0\u2028\ufeff", "A='é\u00a0\u2028\ufeff'"},
		{"control", "\t\x01\x7f", "A='\t\x01\x7f'"},
		{"single quote", "it's", `A="it's"`},
		{"in single quotes", "'a'", `A="'a'"`},
		{"lines", "a\nB=2\n", `A="a\nB=2\n"`},
		{"DOS lines", "a\r\nb\r\n", `A="a\r\nb\r\n"`},
		{"carriage return", "a\rb", `A="a\rb"`},
		{"JSON", "{\"a\": \"$b\\n\"\n}", "A='{\"a\": \"$b\\n\"\n}'"},
		{"two backslashes", `\\host\x`, `A=\\host\x`},
		{"backslash at the end", `a b\`, `A=a b\`},
		{"both quotes", `it's "x"`, `A=it's "x"`},
		{"escaped quote", `a\'b`, `A=a\'b`},
		{"two backslashes, hash", `\\w #`, `A='\\w #'`},
		{"single quote, dollar", `it's $5`, `A="it's \$5"`},
		{"both quotes, dollar", `"it's" ${x}\y.`, `A="\"it's\" \${x}\\y."`},
		{"both quotes, line", "it's \"x\"\n", `A="it's \"x\"\n"`},
		{"carriage return, double quote", "\"a\"\rb", `A="\"a\"\rb"`},
		{"bare would be trimmed", ` it's\`, ``},
		{"backslash at the end, dollar", `a$b\`, ``},
		{"backslash at the end, hash", `a #b\`, ``},
		{"backslash at the end, line", "a\nb\\", ``},
		{"double quote at the end, dollar", `it's "$x"`, ``},
		{"only quotes", `'"`, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, skipped := Encode(volume.EnvDotenv, []Variable{{"A", c.value}})
			if c.want == "" {
				if len(data) != 0 || !slices.Equal(skipped, []string{"A"}) {
					t.Errorf("Encode gives %q and skips %q; want A skipped", data, skipped)
				}
				return
			}
			if string(data) != c.want+"\n" || skipped != nil {
				t.Errorf("Encode gives %q and skips %q; want %q", data, skipped, c.want+"\n")
			}
		})
	}
}
