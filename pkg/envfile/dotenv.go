package envfile

import (
	"strings"
	"unicode"
)

// quoteDotenv returns a value as dotenv parsers read it, and false if none of the forms can hold it. There is no standard, and
// parsers differ in which escapes and expansions they know within which quotes, so
// each value gets the first of these forms that can hold it; earlier ones are read by
// more parsers:
//
//	plain    NAME=value      letters, digits and a few signs: read by everything
//	single   NAME='value'    literal, within one line
//	double   NAME="value"    with no escapes but \n and \r
//	single                   with line feeds in it as they are: node's dotenv reads \" and \\ wrong, and python-dotenv \$
//	double                   for line feeds and \\, which python-dotenv reads so, and node's dotenv only in the single form
//	bare     NAME=value      literal, for backslashes and quotes within one line
//	single                   with \\ in it, which python-dotenv takes for one backslash
//	double                   with escapes, which godotenv and compose-go know all
//	                         of; python-dotenv keeps the backslash of \$, node's
//	                         dotenv every backslash but those of \n and \r
//
// What is written is read back unchanged by godotenv and by compose-go, which Docker
// Compose reads its env files with. A quoted value never ends in a backslash: all but
// compose-go would take the quote after it for a part of the value, and what follows
// for the rest.
//
// A reader that takes a file line by line sees the lines of a value as variables. So a line feed is written as \n, but for
// values that a parser would then read wrong, and of which the single form is read by as many.
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

// plain are the characters that mean nothing to any parser.
const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%+,-./:=@_"

// fitsSingle says whether value can be read between single quotes: there is no escape
// there, and parsers take a carriage return for a line's end even there.
func fitsSingle(value string) bool {
	return !strings.ContainsAny(value, "'\r") && !strings.HasSuffix(value, `\`)
}

// fitsBare says whether value can be read without quotes: it is on one line, has no
// comment or expansion in it, does not look quoted, and has no space that a parser
// would trim.
func fitsBare(value string) bool {
	return strings.IndexFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 &&
		!strings.ContainsAny(value, "#$") &&
		strings.IndexAny(value, "'\"` ") != 0 && !strings.HasSuffix(value, " ")
}

// fitsDouble says whether value can be read between double quotes. Of several quotes
// at the end godotenv takes all for the closing one, escaped or not.
func fitsDouble(value string) bool {
	return !strings.HasSuffix(value, `\`) && !strings.HasSuffix(value, `"`)
}
