package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The loader is a command line; the archive's name may have spaces.
func TestLoadIntoOutsideCluster(t *testing.T) {
	dir := t.TempDir()
	archive, copied := filepath.Join(dir, "an archive.tar"), filepath.Join(dir, "copied")
	if err := os.WriteFile(archive, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &outsideCluster{loader: "install -m 600 -t " + copied}
	if err := os.Mkdir(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.load(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(copied, "an archive.tar")); err != nil {
		t.Error(err)
	}
}

// The tests that the suite left out are listed, in order, whether the others pass or fail.
func TestLeavingOut(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		fails        bool
	}{
		"none":     {":", "tests left out: 0", false},
		"some":     {`printf 'TestTwo/a: reboots\nTestOne: looks\n' >>"$REFVOL_LEFT_OUT"`, "tests left out: 2\n  TestOne: looks\n  TestTwo/a: reboots", false},
		"a failed": {`printf 'TestOne: looks\n' >>"$REFVOL_LEFT_OUT"; exit 1`, "tests left out: 1\n  TestOne: looks", true},
	} {
		t.Run(name, func(t *testing.T) {
			var said strings.Builder
			dir := t.TempDir()
			t.Setenv("TMPDIR", dir)
			err := leavingOut(t.Context(), command{dir: dir, args: []string{"sh", "-c", c.script}}, func(format string, args ...any) {
				fmt.Fprintf(&said, format, args...)
			})
			if c.fails != (err != nil) || said.String() != c.want {
				t.Errorf("said %q, want %q; %v", said.String(), c.want, err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// A cluster that does not run the pods' image is told from one whose plugin fails, and no pod stays.
func TestRunsProbe(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "kubectl")
	script := "#!/bin/sh\nshift 4\necho \"$*\" >>" + dir + "/calls\ncase $1 in wait) exit ${WAIT:-0} ;; esac\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	k := kubectl{program, "/config"}
	if err := runsProbe(t.Context(), k, "a/probe:1"); err != nil {
		t.Error(err)
	}
	t.Setenv("WAIT", "1")
	err := runsProbe(t.Context(), k, "a/probe:1")
	if err == nil || !strings.Contains(err.Error(), "does not run PROBE_IMAGE=a/probe:1; make probe-image packs it") {
		t.Errorf("got %v", err)
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if lines := strings.Split(strings.TrimSpace(string(calls)), "\n"); err != nil || len(lines) != 8 || !strings.HasPrefix(lines[7], "delete pod") {
		t.Errorf("calls %q, %v", lines, err)
	}
}
