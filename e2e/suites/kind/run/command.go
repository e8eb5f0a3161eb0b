package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// graceful is how long a program may take to end once it is told to.
const graceful = 20 * time.Second

// command describes a program to run.
type command struct {
	// dir is the working directory; "" is the runner's own.
	dir string
	// env is added to the runner's environment.
	env []string
	// args are the program and its arguments.
	args []string
}

// run runs the program with its output on the runner's own.
func (c command) run(ctx context.Context) error {
	cmd := c.prepare(ctx)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return c.wrap(cmd.Run(), "")
}

// quiet runs the program and shows what it wrote only if it failed.
func (c command) quiet(ctx context.Context) error {
	cmd := c.prepare(ctx)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return c.wrap(cmd.Run(), out.String())
}

// output runs the program and returns its trimmed stdout; progress gets its stderr.
func (c command) output(ctx context.Context, progress io.Writer) (string, error) {
	cmd := c.prepare(ctx)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, progress
	err := cmd.Run()
	return strings.TrimSpace(out.String()), c.wrap(err, "")
}

// prepare makes the program ready to run in a process group of its own, so that an
// interrupt from the terminal reaches the runner alone, which then tells the whole
// group, and later can still run what takes the cluster away.
func (c command) prepare(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = graceful
	return cmd
}

func (c command) wrap(err error, output string) error {
	if err == nil {
		return nil
	}
	words := append([]string{filepath.Base(c.args[0])}, c.args[1:]...)
	err = fmt.Errorf("%s: %w", strings.Join(words, " "), err)
	if output != "" {
		err = fmt.Errorf("%w\n%s", err, output)
	}
	return err
}

// stopwatch prints what the runner does, and how long since the start.
type stopwatch struct{ start time.Time }

func (s stopwatch) say(format string, args ...any) {
	elapsed := time.Since(s.start).Round(time.Second)
	fmt.Printf("e2e [%2d:%02d] %s\n", int(elapsed.Minutes()), int(elapsed.Seconds())%60, fmt.Sprintf(format, args...))
}
