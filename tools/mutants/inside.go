package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/refvol/refvol/internal/sandbox"
)

const (
	// insideCommand as the first argument makes this program run another one, the rest of its arguments,
	// in a sandbox.
	insideCommand = "inside"
	// noSandbox is its exit status where that can't be.
	noSandbox = 125
)

// runInside runs a program in the sandbox in the place of this one, and returns the exit status.
func runInside(args []string) int {
	status, inside, err := sandbox.Enter(sandbox.Options{})
	if inside && err == nil {
		err = syscall.Exec(args[0], args, os.Environ()) //nolint:gosec // It is what was built.
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return noSandbox
	}
	return status
}

// execute runs a test binary in a sandbox of its own and returns its exit status and what it printed.
func execute(ctx context.Context, dir, binary string, args ...string) (status int, output string, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, "", err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{insideCommand, binary}, args...)...) //nolint:gosec // This program itself.
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// What the tests started may hold the output open.
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		status, err = exit.ExitCode(), nil
	}
	if status == noSandbox {
		err = errors.New(out.String())
	}
	return status, out.String(), err
}
