package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/payload"
)

// An author may have any number of variables left out, each with a long name. The text about them stays short.
func TestSkippedTextIsShort(t *testing.T) {
	var names, leftOut []string
	for i := range 500 {
		names = append(names, strings.Repeat(".", 6000)+fmt.Sprint(i))
		leftOut = append(leftOut, strings.Repeat("N", 1000)+fmt.Sprintf("%d (fileKeyRef a b c)", i))
	}
	var skipped []payload.Skipped
	for i := range 20 {
		skipped = append(skipped, payload.Skipped{Path: strings.Repeat("p", 4000) + fmt.Sprint(i), Format: "shell", Invalid: names, Dependent: names})
	}
	text := skippedText(skipped, failure.Few(leftOut))
	if len(text) > 20<<10 {
		t.Fatalf("%d bytes: %.200s", len(text), text)
	}
	for _, want := range []string{" and 490 more", "and in 10 more files", "... (6001 bytes)", "left out, because a volume can't know them: NNN"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
	few := skippedText([]payload.Skipped{{Path: "e", Format: "dotenv", Invalid: []string{"a.b", "c.d"}}}, "CPU (resourceFieldRef limits.cpu)")
	if want := "e: skipped, because a dotenv file can't hold them: a.b, c.d; left out, because a volume can't know them: CPU (resourceFieldRef limits.cpu)"; few != want {
		t.Errorf("\ngot  %s\nwant %s", few, want)
	}
	long := strings.Repeat("n", failure.MaxNameLength)
	few = skippedText([]payload.Skipped{{Path: "e", Format: "shell", Dependent: []string{long}}}, "")
	if want := "e: left out, because they refer to values that a volume can't know: " + long; few != want {
		t.Errorf("\ngot  %s\nwant %s", few, want)
	}
}
