package envfile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/refvol/refvol/pkg/volume"
)

func FuzzDotenv(f *testing.F) { fuzz(f, volume.EnvDotenv, decodeDotenv) }

func FuzzShell(f *testing.F) { fuzz(f, volume.EnvShell, decodeShell) }

// fuzz checks of any two variables between two fixed ones that what was not skipped
// is read back, in order, and nothing else.
func fuzz(f *testing.F, format volume.EnvFormat, decode func(string) (string, string, error)) {
	for _, value := range []string{
		"", "a", " a ", "it's", `"a"`, `'"`, "`", `\`, `a\`, `\\`, `\'`, `\"`, `\n`, "$A", "${FIRST}", "a #b",
		"a\nLAST=x", "a\r\nb", "\r", "'\nLAST=x\n'", "\"\nLAST=x\n\"", `'$\`, "é\u2028", "\xff", "\x00",
	} {
		f.Add("A", value, "B", `it's "x"`)
	}
	f.Add("UID", "1", "OPTIND", "x[$(id)]")
	f.Add("A;id", "1", "1A", "x")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string) {
		variables := []Variable{{"FIRST", "a'b"}, {name1, value1}, {name2, value2}, {"LAST", "c d"}}
		data, skipped := Encode(format, variables)
		if !slices.IsSorted(skipped) || len(slices.Compact(slices.Clone(skipped))) != len(skipped) {
			t.Errorf("the skipped names are not sorted, each once: %q", skipped)
		}
		// A name that is there twice can be skipped for one of its values.
		if name1 == name2 {
			skipped = nil
			if !encodes(format, variables[1]) {
				variables[1] = Variable{}
			}
			if !encodes(format, variables[2]) {
				variables[2] = Variable{}
			}
		}
		want := slices.DeleteFunc(variables, func(v Variable) bool {
			return v.Name == "" || v.Name != "FIRST" && v.Name != "LAST" && slices.Contains(skipped, v.Name)
		})
		if name1 == "FIRST" || name1 == "LAST" || name2 == "FIRST" || name2 == "LAST" {
			return
		}
		got, err := decodeAll(string(data), decode)
		if err != nil {
			t.Fatalf("%v in %q", err, data)
		}
		if !slices.Equal(got, want) {
			t.Errorf("read back %q of %q", values(got), data)
		}
		checkSkipped(t, format, name1, value1, encodes(format, Variable{name1, value1}))
	})
}

func encodes(format volume.EnvFormat, v Variable) bool {
	_, skipped := Encode(format, []Variable{v})
	return len(skipped) == 0
}

// checkSkipped checks that only what no quoting can hold is left out.
func checkSkipped(t *testing.T, format volume.EnvFormat, name, value string, written bool) {
	t.Helper()
	possible := utf8.ValidString(value) && !strings.ContainsRune(value, 0) &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == "" &&
		strings.TrimLeft(name, "0123456789") == name && name != ""
	if written && !possible {
		t.Errorf("%q = %q is written", name, value)
	}
	ends := strings.HasSuffix(value, `\`) || strings.HasSuffix(value, `"`)
	if !written && possible && (format == volume.EnvDotenv && !ends || format == volume.EnvShell && !keptByShell(name)) {
		t.Errorf("%q = %q is skipped", name, value)
	}
}

func values(variables []Variable) []string {
	var texts []string
	for _, v := range variables {
		texts = append(texts, v.Name+"="+v.Value)
	}
	return texts
}

// decodeAll reads a file of NAME=value lines whose values decode reads. decode returns
// the value and what follows the line.
func decodeAll(data string, decode func(string) (string, string, error)) ([]Variable, error) {
	var variables []Variable
	for data != "" {
		name, rest, found := strings.Cut(data, "=")
		if !found || strings.ContainsAny(name, "\n'\" \\$`;#") {
			return nil, fmt.Errorf("bad name %q", name)
		}
		value, rest, err := decode(rest)
		if err != nil {
			return nil, fmt.Errorf("value of %q: %w", name, err)
		}
		variables = append(variables, Variable{name, value})
		data = rest
	}
	return variables, nil
}

// decodeShell reads what POSIX makes of single-quoted strings and escaped quotes.
func decodeShell(data string) (value, rest string, err error) {
	for {
		switch {
		case strings.HasPrefix(data, "'"):
			literal, after, found := strings.Cut(data[1:], "'")
			if !found {
				return "", "", errors.New("no closing quote")
			}
			value, data = value+literal, after
		case strings.HasPrefix(data, `\'`):
			value, data = value+"'", data[2:]
		case strings.HasPrefix(data, "\n"):
			return value, data[1:], nil
		default:
			return "", "", fmt.Errorf("unquoted %.10q", data)
		}
	}
}

// decodeDotenv reads what dotenv parsers agree on, and refuses what some of them take
// for something else.
func decodeDotenv(data string) (value, rest string, err error) {
	switch {
	case strings.HasPrefix(data, "'"):
		value, rest, _ = strings.Cut(data[1:], "'")
		if strings.HasSuffix(value, `\`) || strings.Contains(value, "\r") {
			return "", "", fmt.Errorf("%q between single quotes", value)
		}
	case strings.HasPrefix(data, `"`):
		if value, rest, err = decodeDouble(data[1:]); err != nil {
			return "", "", err
		}
	default:
		value, _, _ = strings.Cut(data, "\n")
		rest = data[len(value):]
		if strings.TrimSpace(value) != value || strings.ContainsAny(value, "#$\r\u2028\u2029") || strings.HasPrefix(value, "`") {
			return "", "", fmt.Errorf("%q without quotes", value)
		}
	}
	if !strings.HasPrefix(rest, "\n") {
		return "", "", fmt.Errorf("%.10q after the value", rest)
	}
	return value, rest[1:], nil
}

// decodeDouble reads up to the closing double quote, whose opening one is gone.
func decodeDouble(data string) (value, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			if i > 0 && (data[i-1] == '\\' || data[i-1] == '"') {
				return "", "", errors.New("backslash or quote before the closing quote")
			}
			return b.String(), data[i+1:], nil
		case '$', '\n', '\r':
			return "", "", fmt.Errorf("%q between double quotes", c)
		case '\\':
			if i++; i == len(data) {
				return "", "", errors.New("backslash at the end")
			}
			at := strings.IndexByte(`\"$nr`, data[i])
			if at < 0 {
				return "", "", fmt.Errorf("escape %.2q", data[i-1:])
			}
			b.WriteByte("\\\"$\n\r"[at])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", errors.New("no closing quote")
}
