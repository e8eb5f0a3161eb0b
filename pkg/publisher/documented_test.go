package publisher

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
		fmt.Sprintf("**More than %d files.**", maxWatchedFiles),
		fmt.Sprintf("at the earliest after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest),
		fmt.Sprintf("tries again by itself: after %v s, and after longer each time, up to %s", rewatchMin.Seconds(), longest),
		fmt.Sprintf("less where there is no room | %v to %v s |", pruneTime.Seconds(), 3*pruneTime.Seconds()),
	} {
		if want == "" || !strings.Contains(plain, want) {
			t.Errorf("docs/limits.md doesn't say %q", want)
		}
	}
}
