package volume

import (
	"strings"
	"testing"
)

// TestRevisions: a revision has a form that can be printed anywhere.
func TestRevisions(t *testing.T) {
	for text, want := range map[string]bool{
		"4f2a91c": true, "refs/heads/main@sha1:4f2a91c+dirty_1.2-3": true, "1": true, strings.Repeat("r", 128): true,
		"": false, strings.Repeat("r", 129): false, "a b": false, "a\n": false, "ä": false, "a;b": false, "a=b": false,
	} {
		if Revision(text).IsValid() != want {
			t.Errorf("%q: %t", text, !want)
		}
	}
}
