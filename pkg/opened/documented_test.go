package opened

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestDocumentedLimits: docs/limits.md has the right numbers for receipts.
func TestDocumentedLimits(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Join(strings.Fields(string(text)), " ")
	longest := map[time.Duration]string{time.Hour: "an hour"}[rewatchMax]
	for _, want := range []string{
		fmt.Sprintf("**More than %d files.**", maxFiles),
		fmt.Sprintf("at the earliest after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest),
		fmt.Sprintf("tries again by itself: after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest),
	} {
		if !strings.Contains(plain, want) {
			t.Errorf("docs/limits.md doesn't say %q", want)
		}
	}
}
