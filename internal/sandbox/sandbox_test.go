package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/must"
)

// attack changes, removes and creates files in the directory $0, by its path and through the roots of all processes.
const attack = `case $0 in /var/tmp/refvol-sandbox-*/outside) ;; *) exit 1 ;; esac
for dir in "$0" /proc/[0-9]*/root"$0"; do
	echo broken >"$dir/passwd"; chmod 777 "$dir/etc/tool"; rm -rf "$dir/etc/shadow" "$dir/etc/ssl"; touch "$dir/new"
done 2>/dev/null
exit 7`

// run attacks a directory with a command, whose status must be that of the attack, and returns the changes.
func run(t *testing.T, command ...string) string {
	t.Helper()
	parent, err := os.MkdirTemp("/var/tmp", "refvol-sandbox-") // what the sandbox hides would prove nothing
	must.Do(t, err)
	t.Cleanup(func() { os.RemoveAll(parent) })
	dir := filepath.Join(parent, "outside")
	differences := outside(t, dir)
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], "sh", "-c", attack, dir)...)
	cmd.Env = append(os.Environ(), variable+"=") // not the one of this test
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Join(differences(), "\n")
}

func TestNothingLasts(t *testing.T) {
	if got := run(t, "../../tools/sandbox.sh"); got != "" {
		t.Error(got)
	}
}

// The same attack without a sandbox changes what Outside checks.
func TestAttackIsOne(t *testing.T) {
	got := run(t, "env")
	for _, want := range []string{"passwd was", "etc/tool was", "etc/shadow was", "etc/ssl was", "new was absent"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q among\n%s", want, got)
		}
	}
}

// A mark that was inherited from another namespace, or set by hand, proves nothing.
func TestCheck(t *testing.T) {
	t.Setenv(variable, "mnt:[1]")
	if err := Check(); err == nil {
		t.Error("another namespace's sandbox counts as this one's")
	}
}
