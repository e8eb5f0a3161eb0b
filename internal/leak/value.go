// Package leak creates values that stand for what must not leak, known as canaries. It finds them in places where they must not be, in the
// forms in which a program may write them. It is for tests of all tiers.
//
// Every value holds the same mark, so that one search finds all of them, including those of other tests. A token is found by the start that
// all JSON web tokens have. The package must not know what is searched, or why.
package leak

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
)

const (
	// mark is in every value. These letters occur in this case nowhere else.
	mark = "CaNaRy-"
	// A value has units of ten bytes, so that every sixteen bytes have a whole mark, also in a value that was cut off.
	units, unit = 4, len(mark) + 3
	// Size is the length of a value in bytes.
	Size = units * unit
	// Value is one value, for tests that need no other.
	Value = mark + "001" + mark + "002" + mark + "003" + mark + "004"
)

// NewValue returns a unique value that is safe as a key's value or a file name.
func NewValue() string {
	random := rand.Text()
	var value strings.Builder
	for i := range units {
		value.WriteString(mark + random[3*i:3*i+3])
	}
	return value.String()
}

// NewToken returns a token that no server accepts, in the form of a service account's token, with a value in its claims and as its
// signature.
func NewToken() string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"none"}`)) + "." +
		encode([]byte(`{"aud":["`+NewValue()+`"]}`)) + "." + NewValue()
}
