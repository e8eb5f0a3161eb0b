package requests

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedPauses: docs/reliability.md has the right pauses.
func TestDocumentedPauses(t *testing.T) {
	text, err := os.ReadFile("../../docs/reliability.md")
	must(t, err)
	want := fmt.Sprintf("up to %v s apart while it can't be reached, up to %v s after a 401 or 503", maxWayPause.Seconds(), maxPause.Seconds())
	limit := fmt.Sprintf("`Retry-After`, up to %v s", maxRetryAfter.Seconds())
	for _, want := range []string{want, limit} {
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
			t.Errorf("docs/reliability.md doesn't say %q", want)
		}
	}
}
