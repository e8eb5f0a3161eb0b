package requests

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedPauses: docs/reliability.md says how far attempts are apart.
func TestDocumentedPauses(t *testing.T) {
	text, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("up to %v s apart, or as long as `Retry-After` says: up to %v s, and at random half as long again", maxPause.Seconds(), maxRetryAfter.Seconds())
	if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
		t.Errorf("docs/reliability.md doesn't say %q", want)
	}
}
