// Package tools tests the scripts of this directory.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const limit = 512 << 10

// make lint refuses files that nobody meant to commit.
func TestTrackedFiles(t *testing.T) {
	script, err := filepath.Abs("tracked.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		content   string
		untracked bool
		// want is in what the script says; "" has it pass.
		want string
	}{
		"empty":                    {content: ""},
		"a text":                   {content: "package main\n"},
		"a text that begins as PE": {content: "MZ is no program, but a text of more than sixty-four bytes: nothing in it is zero\n"},
		"ELF":                      {content: "\x7fELF\x02\x01\x01\x00", want: "is a program"},
		"PE":                       {content: "MZ\x90\x00\x03\x00", want: "is a program"},
		"Mach-O, 32 bits":          {content: "\xce\xfa\xed\xfe\x07\x00", want: "is a program"},
		"Mach-O, 64 bits":          {content: "\xcf\xfa\xed\xfe\x07\x00", want: "is a program"},
		"Mach-O, big-endian":       {content: "\xfe\xed\xfa\xcf\x01\x00", want: "is a program"},
		"Mach-O, both":             {content: "\xca\xfe\xba\xbe\x00\x00\x00\x02", want: "is a program"},
		"ELF that is not tracked":  {content: "\x7fELF\x02\x01\x01\x00", untracked: true},
		"as large as can be":       {content: strings.Repeat("a", limit)},
		"larger":                   {content: strings.Repeat("a", limit+1), want: "has 524289 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			run := func(command string, args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), command, args...)
				cmd.Dir = dir
				output, err := cmd.CombinedOutput()
				return string(output), err
			}
			must := func(output string, err error) {
				t.Helper()
				if err != nil {
					t.Fatalf("%v: %s", err, output)
				}
			}
			must(run("git", "init", "--quiet"))
			if err := os.WriteFile(dir+"/with space", []byte("text"), 0o644); err != nil {
				t.Fatal(err)
			}
			must(run("git", "add", "with space"))
			if err := os.WriteFile(dir+"/a file", []byte(test.content), 0o644); err != nil {
				t.Fatal(err)
			}
			if !test.untracked {
				must(run("git", "add", "a file"))
			}
			output, err := run(script)
			switch {
			case test.want == "":
				must(output, err)
			case err == nil || !strings.Contains(output, "a file "+test.want):
				t.Errorf("got %v and %q, want a failure that says %q", err, output, test.want)
			}
		})
	}
}
