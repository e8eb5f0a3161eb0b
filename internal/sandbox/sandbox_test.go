package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// attackVariable makes this program another one: it enters the sandbox whose kind kindVariable
// names, or any, and attacks the directory.
const (
	attackVariable = "SANDBOX_TEST_ATTACK"
	kindVariable   = "SANDBOX_TEST_KIND"
	keptVariable   = "SANDBOX_TEST_KEEP"
)

// The tests look from outside; what they start enters.
func TestMain(m *testing.M) {
	dir := os.Getenv(attackVariable)
	if dir == "" {
		goleak.VerifyTestMain(m)
		return
	}
	options := Options{Keep: func() ([]string, error) { return filepath.SplitList(os.Getenv(keptVariable)), nil }}
	tried := kinds()
	if name := os.Getenv(kindVariable); name != "" {
		tried = []kind{kind(name)}
	}
	status, inside, err := enter(options, tried)
	if err == nil && inside {
		attack(dir)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "error:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// attack does to a directory all that a broken program might do, by its path, through a clone of its mount
// that may be written to, and through the roots of all processes. It prints what came of each try.
func attack(dir string) {
	say := func(what string, err error) { _, _ = fmt.Fprintf(os.Stdout, "%s: %v\n", what, err) }
	clone, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	say("clone", err)
	say("clear", unix.MountSetattr(clone, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}))
	say("by the clone", damage(fmt.Sprintf("/proc/self/fd/%d", clone)))
	say("by the path", damage(dir))
	roots, err := filepath.Glob("/proc/[0-9]*/root")
	say("roots", err)
	for _, root := range roots {
		// Where it leads to this process's own root, this has been done.
		if err := damage(root + dir); err == nil {
			_, _ = fmt.Fprintln(os.Stdout, "through a root: done")
		}
	}
}

// damage changes the content and the mode of a file, removes files and a directory, and makes a file and
// links. What can't be done doesn't keep it from the rest.
func damage(dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	return errors.Join(
		os.WriteFile(at("passwd"), []byte("broken"), 0o600), os.Chmod(at("etc/tool"), 0o777),
		os.Remove(at("etc/shadow")), os.RemoveAll(at("etc/ssl")),
		os.WriteFile(at("new"), nil, 0o600), os.Symlink("x", at("etc/x")), os.Link(at("passwd"), at("etc/y")))
}

// run runs this program as an attacker in a sandbox, and returns what it printed. It skips the test where
// this kind of sandbox can't be had.
func run(t *testing.T, k kind, dir string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(append(os.Environ(), attackVariable+"="+dir, kindVariable+"="+string(k)), env...)
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte(ErrUnavailable.Error())) {
		t.Skipf("%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// TestAvailable is skipped where the tests of other packages are. make test-unit says so.
func TestAvailable(t *testing.T) {
	run(t, "", t.TempDir())
}

// TestNothingLasts has a program attack a directory of this test's from inside, and looks at it from
// outside.
func TestNothingLasts(t *testing.T) {
	for k, want := range map[kind][]string{
		overlaid: {"clear: <nil>", "by the clone: <nil>"},
		nested:   {"clear: operation not permitted", "read-only file system"},
	} {
		t.Run(string(k), func(t *testing.T) {
			o := NewOutside(t, filepath.Join(t.TempDir(), "outside"))
			out := run(t, k, o.Dir)
			for _, line := range want {
				if !strings.Contains(out, line) {
					t.Errorf("want %q in what the program inside says:\n%s", line, out)
				}
			}
		})
	}
}

// TestAttackIsOne has the same program do the same without protection: what TestNothingLasts finds
// unchanged is changed then.
func TestAttackIsOne(t *testing.T) {
	var fake fakeTest
	fake.TB = t
	o := NewOutside(&fake, filepath.Join(t.TempDir(), "outside"))
	out := run(t, disposable, o.Dir)
	if strings.Contains(out, "error:") {
		t.Skip(out) // without root there is no mount namespace
	}
	o.Check(&fake)
	got := strings.Join(fake.failures, "\n")
	for _, want := range []string{"passwd was", "etc/tool was", "etc/shadow was", "etc/ssl was", "new is new", "etc/x is new"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among the changes that are found:\n%s", want, got)
		}
	}
}

// fakeTest notes failures and does nothing at its end.
type fakeTest struct {
	testing.TB
	failures []string
}

func (f *fakeTest) Helper()           {}
func (f *fakeTest) Cleanup(func())    {}
func (f *fakeTest) Error(args ...any) { f.failures = append(f.failures, fmt.Sprint(args...)) }

// TestKeep checks that what may be written lasts, and that the directory beside it doesn't.
func TestKeep(t *testing.T) {
	for _, k := range []kind{overlaid, nested} {
		t.Run(string(k), func(t *testing.T) {
			o := NewOutside(t, filepath.Join(t.TempDir(), "outside"))
			kept := filepath.Join(t.TempDir(), "cache", "made")
			run(t, k, o.Dir, keptVariable+"="+kept)
			if _, err := os.Stat(kept); err != nil {
				t.Fatal(err)
			}
			out := run(t, k, kept, keptVariable+"="+kept)
			if _, err := os.Stat(filepath.Join(kept, "new")); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestInheritedMarkIsNoSandbox starts a program that has inherited the mark of another's sandbox, as from
// a shell, and runs outside.
func TestInheritedMarkIsNoSandbox(t *testing.T) {
	here, err := mountNamespace()
	if err != nil {
		t.Fatal(err)
	}
	o := NewOutside(t, filepath.Join(t.TempDir(), "outside"))
	run(t, "", o.Dir, insideVariable+"="+here+"0")
}

func TestExitStatus(t *testing.T) {
	for _, tc := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"kill -KILL $$", 128 + int(syscall.SIGKILL)},
	} {
		got, err := exitStatus(exec.CommandContext(context.Background(), "/bin/sh", "-c", tc.script).Run())
		if err != nil || got != tc.want {
			t.Errorf("%s: status = %d, %v, want %d", tc.script, got, err, tc.want)
		}
	}
	if _, err := exitStatus(exec.Command("/no/such/program").Run()); err == nil {
		t.Error("a program that never ran has a status")
	}
}
