package receipts

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestDocumentedSpeed: docs/limits.md says how many opens a second are too many, rounded.
func TestDocumentedSpeed(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`about ([0-9,]+) opens a second`).FindStringSubmatch(string(text))
	if got == nil {
		t.Fatal("docs/limits.md doesn't say it")
	}
	n, err := strconv.Atoi(strings.ReplaceAll(got[1], ",", ""))
	if exact := maxEvents * int(time.Second/pause); err != nil || n < exact*9/10 || n > exact*11/10 {
		t.Errorf("docs/limits.md says %s, and it is %d", got[1], exact)
	}
}
