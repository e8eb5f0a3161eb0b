package report

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestDocumentedPatience: docs/status.md and docs/limits.md say when a volume is abnormal.
func TestDocumentedPatience(t *testing.T) {
	for document, want := range map[string]string{
		"status.md": fmt.Sprintf("`Unknown`, `Publishing`, `Stale`, `Split`: after %v minutes. `Split` while a publish waits: after a minute of that publish.", patience.Minutes()),
		"limits.md": fmt.Sprintf("with `Cache` and `Get` a stale one after two resyncs more | %v s |", patience.Seconds()),
	} {
		text, err := os.ReadFile("../../docs/" + document)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
			t.Errorf("docs/%s doesn't say %q", document, want)
		}
	}
}
