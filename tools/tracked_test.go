// Package tools tests the scripts of this directory.
package tools

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// make lint refuses files that nobody meant to commit.
func TestTrackedFiles(t *testing.T) {
	const limit = 512 << 10
	script, err := filepath.Abs("tracked.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	run := func(command string, args ...string) (string, error) {
		output, err := exec.CommandContext(t.Context(), command, args...).CombinedOutput()
		return string(output), err
	}
	track := func(files map[string]string) {
		for name, content := range files {
			if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if output, err := run("git", "add", "--all"); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	if output, err := run("git", "init", "--quiet"); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	track(map[string]string{
		".gitignore": "not tracked\n", "not tracked": "\x7fELF\x02\x01\x01\x00", "empty": "", "a text": "package main\n",
		"begins as PE":       "MZ is no program, but a text of more than sixty-four bytes: nothing in it is zero\n",
		"as large as can be": strings.Repeat("a", limit),
	})
	if output, err := run(script); err != nil || output != "" {
		t.Errorf("got %v and %q, want nothing", err, output)
	}
	programs := map[string]string{
		"ELF": "\x7fELF\x02\x01\x01\x00", "PE": "MZ\x90\x00\x03\x00",
		"Mach-O, 32 bits": "\xce\xfa\xed\xfe\x07\x00", "Mach-O, 64 bits": "\xcf\xfa\xed\xfe\x07\x00",
		"Mach-O, big-endian": "\xfe\xed\xfa\xcf\x01\x00", "Mach-O, both": "\xca\xfe\xba\xbe\x00\x00\x00\x02",
	}
	track(programs)
	track(map[string]string{"larger": strings.Repeat("a", limit+1)})
	want := []string{"larger has 524289 bytes, more than 524288"}
	for name := range programs {
		want = append(want, name+" is a program: remove it from git")
	}
	output, err := run(script)
	got := strings.Split(strings.TrimSpace(output), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if err == nil || !slices.Equal(got, want) {
		t.Errorf("got %v and %q, want a failure and %q", err, got, want)
	}
}
