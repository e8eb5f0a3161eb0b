package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// besiege makes attacks and returns what they came to.
func besiege(t *testing.T, command string, a *assault) siege {
	t.Helper()
	arg, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	var s siege
	var out bytes.Buffer
	if err := run(t.Context(), &out, []string{command, string(arg)}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Each attack works on files that may be changed, in each way: so where one fails,
// something withstood it. And what works is reported.
func TestAttacksWork(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	p := place{Dir: filepath.Join(dir, "place"), Name: "key"}
	if err := p.makeAnew(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &assault{Places: []place{p}, Scratch: dir, Outside: outside, Seconds: 1}
	s := besiege(t, "attack", a)
	for _, at := range append(fileAttacks(), dirAttacks()...) {
		tally := s.Rehearsal[at.name]
		if tally == nil || tally.Answers["ok"] < 5 {
			t.Errorf("%s: %+v", at.name, tally)
		} else if tally.Answers["ok"] != tally.Tries {
			t.Logf("%s: %v", at.name, tally.Answers) // not every file system has all of them
		}
	}
	for _, name := range []string{"open-create-truncate", "mkdir", "chmod", "escape-path", "escape-upwards", "escape-link"} {
		tally := s.Report[name]
		if tally == nil || tally.Answers["ok"] == 0 || len(tally.Succeeded) == 0 {
			t.Errorf("%s was not reported: %+v", name, tally)
		}
	}
	if got := besiege(t, "escape", a).Report["escape-process-root"]; got == nil || len(got.Succeeded) == 0 {
		t.Errorf("no way out by a process's root: %+v", got)
	}
}

// TestMapShared: a file that is truncated under the mapping faults, and ends nothing.
func TestMapShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"text", ""} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := withFile(file, unix.O_RDWR, mapShared); err != nil {
			t.Errorf("of %d bytes: %v", len(text), err)
		}
		if got, err := os.ReadFile(file); err != nil || (text != "") != (len(got) > 0 && got[0] == '!') {
			t.Errorf("of %d bytes: it holds %q, %v", len(text), got, err)
		}
	}
}
