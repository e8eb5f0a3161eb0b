package suite

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// generation is the name of the directory that holds one version of all files.
var generation = regexp.MustCompile(`^\.\.\d{4}_\d{2}_\d{2}_[\d_.]+$`)

// checkEntries compares a whole volume with want, where GENERATION stands for the name
// of the directory that ..data points to.
func checkEntries(t *testing.T, what string, entries []entry, want []string) {
	t.Helper()
	var current string
	for _, e := range entries {
		if e.Path == "..data" {
			current = e.Link
		}
	}
	if !generation.MatchString(current) {
		t.Errorf("%s: ..data points to %q", what, current)
	}
	var got []string
	for _, e := range entries {
		got = append(got, strings.ReplaceAll(describe(e), current, "GENERATION"))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// describe puts an entry in a line. A link's mode and owner mean nothing.
func describe(e entry) string {
	switch e.Type {
	case "link":
		return "link " + e.Path + " -> " + e.Link
	case "file":
		if e.Denied {
			return "file " + owned(e) + " is not readable"
		}
		return "file " + owned(e) + " = " + string(e.Content)
	}
	return e.Type + " " + owned(e)
}

func owned(e entry) string { return fmt.Sprintf("%s %d:%d %s", e.Mode, e.UID, e.GID, e.Path) }
