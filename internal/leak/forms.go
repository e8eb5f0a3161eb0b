package leak

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// needle is a text that can only come from a value or a token.
type needle struct {
	what string
	text []byte
}

// searcher finds needles, and web tokens of any kind.
type searcher struct {
	needles []needle
	token   *regexp.Regexp
}

// newSearcher returns a searcher for all forms of the mark and of the starts of tokens. A token's header and claims are base64, and these
// are their first bytes.
func newSearcher() *searcher {
	s := &searcher{token: regexp.MustCompile(`eyJ[\w-]{6,}\.eyJ`)}
	for what, text := range map[string]string{
		"value":        mark,
		"token header": base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"`))[:10],
		"token claims": base64.RawURLEncoding.EncodeToString([]byte(`{"aud":[`))[:10],
	} {
		for form, text := range forms(text) {
			s.needles = append(s.needles, needle{what + ", " + form, []byte(text)})
		}
	}
	slices.SortFunc(s.needles, func(a, b needle) int { return strings.Compare(a.what, b.what) })
	return s
}

// forms returns the forms in which a text may appear: plain, which is also its quoted form, base64 as in a JSON body, hexadecimal, and
// escaped as in a URL.
func forms(text string) map[string]string {
	digits := hex.EncodeToString([]byte(text))
	escaped := regexp.MustCompile("..").ReplaceAllString(digits, "%$0")
	all := map[string]string{
		"plain": text,
		"hex":   digits,
		"HEX":   strings.ToUpper(digits),
		"url":   escaped,
		"URL":   strings.ToUpper(escaped),
	}
	// In a longer text, the base64 form depends on the offset, and its first and last characters on the neighbouring text.
	for offset := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", offset) + text))
		first := (8*offset + 5) / 6
		last := 8 * (offset + len(text)) / 6
		all[fmt.Sprint("base64 at offset ", offset)] = encoded[first:last]
	}
	return all
}
