package judge

import (
	"strings"
	"testing"
)

// TestControl: a search of the wrong place fails.
func TestControl(t *testing.T) {
	for name, test := range map[string]struct {
		searched string
		wants    []string
		fails    string
	}{
		"all there":       {"refvol_ready 1\nrefvol_rights 1\n", []string{"refvol_ready", "refvol_rights"}, ""},
		"not empty":       {"x", nil, ""},
		"nothing":         {"", nil, "has read nothing"},
		"another program": {"404 page not found", []string{"refvol_ready"}, `without "refvol_ready"`},
		"a wrong port":    {`error trying to reach service: dial tcp 10.0.0.1:9811: connect: connection refused`, []string{"ok\n"}, `without "ok\n"`},
		"one is missing":  {"refvol_ready 1\n", []string{"refvol_ready", "refvol_rights"}, `without "refvol_rights"`},
		"no control":      {"x", []string{""}, "wants an empty text"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, Control("the place", test.searched, test.wants...), test.fails)
		})
	}
}

// TestReads: rare gaps are no failure, and everything else is.
func TestReads(t *testing.T) {
	const gone = "open /volumes/attributes/key: no such file or directory"
	for name, test := range map[string]struct {
		reads, failed int
		last          string
		fails         string
	}{
		"none failed":       {10_000, 0, "", ""},
		"one of a few":      {20, 1, gone, ""},
		"few of many":       {10_000, 10, gone, ""},
		"too many":          {10_000, 11, gone, "11 of 10000 reads failed"},
		"two of a few":      {20, 2, gone, "2 of 20 reads failed"},
		"all":               {1, 1, gone, ""}, // the probe ends only after a read that did not fail
		"not allowed":       {10_000, 1, "open /volumes/attributes/key: permission denied", "permission denied"},
		"without an error":  {10_000, 1, "", "the last one by"},
		"nothing was read":  {0, 0, "", "the reader has not read"},
		"an absurd reading": {1, 2, gone, "the reader has not read"},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, Reads(test.reads, test.failed, test.last), test.fails) })
	}
}

func wantError(t *testing.T, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}
