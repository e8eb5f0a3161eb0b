package publisher

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedLimits: docs/limits.md has the right numbers for superseded files.
func TestDocumentedLimits(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.Join(strings.Fields(string(text)), " ")
	if want := fmt.Sprintf("less where there is no room | %v to %v s |", pruneTime.Seconds(), 3*pruneTime.Seconds()); !strings.Contains(plain, want) {
		t.Errorf("docs/limits.md doesn't say %q", want)
	}
}
