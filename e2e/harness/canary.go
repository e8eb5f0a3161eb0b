package harness

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
)

// Canary is a random value to put into an object, so that a leak of it can be found
// for certain.
type Canary string

// NewCanary returns one that no other has, safe as a key's value or a file name.
func NewCanary() Canary { return Canary("canary-" + rand.Text()) }

// FindIn returns in which form data holds the canary, or "" if it does not.
func (c Canary) FindIn(data []byte) string {
	for form, text := range c.forms() {
		if bytes.Contains(data, text) {
			return form
		}
	}
	return ""
}

// FindInFile is FindIn for a file.
func (c Canary) FindInFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return c.FindIn(data), nil
}

const dumpLine = 16

// forms are the ways in which a value shows in a log: as it is, as a JSON body
// carries it, as a byte slice is printed.
func (c Canary) forms() map[string][]byte {
	forms := map[string][]byte{
		"plain": []byte(c),
		"hex":   []byte(hex.EncodeToString([]byte(c))),
		"HEX":   bytes.ToUpper([]byte(hex.EncodeToString([]byte(c)))),
		"%v":    bytes.Trim(fmt.Append(nil, []byte(c)), "[]"),
	}
	// Inside a longer value the canary's base64 form depends on where it starts, and
	// its first and last digits on what stands beside it.
	for offset := range 3 {
		padded := append(bytes.Repeat([]byte{'x'}, offset), c...)
		encoded := base64.StdEncoding.EncodeToString(padded)
		forms[fmt.Sprintf("base64 at offset %d", offset)] = []byte(encoded[4 : len(encoded)-4])
	}
	// A hex dump shows sixteen bytes a line; wherever the canary starts, it is long
	// enough to fill at least one line.
	for i := 0; i+dumpLine <= len(c); i++ {
		forms[fmt.Sprintf("hex dump from byte %d", i)] = []byte("|" + c[i:i+dumpLine] + "|")
	}
	return forms
}
