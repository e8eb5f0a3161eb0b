package envfile

import (
	"strings"
	"unicode"
)

// quoteDotenv returns a value in a form that dotenv parsers can read. It returns false if no form can hold it. There is no standard, and
// parsers differ in the escapes and expansions that they support. So each value gets the first of these forms that can hold it. More
// parsers can read the earlier forms:
//
//	plain    NAME=value      letters, digits and a few signs: read by all parsers
//	single   NAME='value'    literal, on one line
//	double   NAME="value"    with no escapes except \n and \r
//	single                   with newlines as they are: node's dotenv reads \" and \\ wrong, and python-dotenv \$
//	double                   for newlines and \\, which python-dotenv reads this way, and node's dotenv only in the single form
//	bare     NAME=value      literal, for backslashes and quotes on one line
//	single                   with \\ in it, which python-dotenv reads as one backslash
//	double                   with all escapes, which godotenv and compose-go support; python-dotenv keeps the backslash of \$,
//	                         and node's dotenv every backslash except those of \n and \r
//
// godotenv and compose-go, with which Docker Compose reads env files, read every value unchanged. A quoted value never ends in a backslash,
// because all parsers except compose-go would read the closing quote as a part of the value, and so also what follows.
//
// A reader that splits a file into lines sees the lines of a value as variables. So a newline is written as \n, except in values that a
// parser would then read wrong and for which as many parsers read the single form.
func quoteDotenv(value string) (string, bool) {
	single := `'` + value + `'`
	double := strings.NewReplacer("\n", `\n`, "\r", `\r`, "$", `\$`, `"`, `\"`, `\`, `\\`)
	lines, doubled := strings.Contains(value, "\n"), strings.Contains(value, `\\`)
	switch {
	case strings.Trim(value, plain) == "":
		return value, true
	case fitsSingle(value) && !doubled && !lines:
		return single, true
	case !strings.ContainsAny(value, `\"$`):
		return `"` + double.Replace(value) + `"`, true
	case fitsSingle(value) && !doubled:
		return single, true
	case lines && doubled && !strings.Contains(value, "$") && fitsDouble(value):
		return `"` + double.Replace(value) + `"`, true
	case fitsBare(value):
		return value, true
	case fitsSingle(value):
		return single, true
	case fitsDouble(value):
		return `"` + double.Replace(value) + `"`, true
	}
	return "", false
}

// plain are the characters without a special meaning in any parser.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_"

// fitsSingle reports whether value can be read between single quotes. There are no escapes there, and parsers treat a carriage return as
// the end of a line even there.
func fitsSingle(value string) bool {
	return !strings.ContainsAny(value, "'\r") && !strings.HasSuffix(value, `\`)
}

// fitsBare reports whether value can be read without quotes: it is on one line, has no comment or expansion, does not look quoted, and has
// no space that a parser would trim.
func fitsBare(value string) bool {
	return strings.IndexFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 &&
		!strings.ContainsAny(value, "#$") &&
		strings.IndexAny(value, "'\"` ") != 0 && !strings.HasSuffix(value, " ")
}

// fitsDouble reports whether value can be read between double quotes. If several quotes end a value, godotenv reads all of them as the
// closing one, escaped or not.
func fitsDouble(value string) bool {
	return !strings.HasSuffix(value, `\`) && !strings.HasSuffix(value, `"`)
}
