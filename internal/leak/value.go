// Package leak makes values that stand in for what must not leak, known as canaries, and
// finds them wherever they must not be, in the forms that a program may write them in. It
// is for tests of all tiers.
//
// Every value holds the same mark, so that one search finds all of them, also those that
// another test made. A token is found by how each JSON web token begins. The package must
// not know what is searched, nor why.
package leak

import (
	"crypto/rand"
	"encoding/base64"
	"strings"
)

const (
	// mark is in every value: letters that stand in this case nowhere else.
	mark = "CaNaRy-"
	// Of units of ten bytes, every sixteen bytes have a whole mark: what is left of a value that was cut off.
	units, unit = 4, len(mark) + 3
	// Size is the length of a value in bytes.
	Size = units * unit
	// Value is one value, for tests that need no other.
	Value = mark + "001" + mark + "002" + mark + "003" + mark + "004"
)

// NewValue returns a value that no other has, safe as a key's value or a file name.
func NewValue() string {
	random := rand.Text()
	var value strings.Builder
	for i := range units {
		value.WriteString(mark + random[3*i:3*i+3])
	}
	return value.String()
}

// NewToken returns a token that no server takes, in the form of a service account's, with a
// value in its claims and as its signature.
func NewToken() string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"none"}`)) + "." +
		encode([]byte(`{"aud":["`+NewValue()+`"]}`)) + "." + NewValue()
}
