package harness

import (
	"bytes"
	"errors"
	"os/exec"

	"github.com/refvol/refvol/internal/leak"
)

// Run runs one of refvol's commands to its end. It fails the test if the command can't be run, or writes a value or a token.
func Run(t TB, program string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			t.Fatalf("%s %q: %v", program, args, err)
		}
	}
	stdout, stderr = out.String(), errOut.String()
	if err := errors.Join(leak.Check("standard output", stdout), leak.Check("standard error", stderr)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return stdout, stderr, cmd.ProcessState.ExitCode()
}
