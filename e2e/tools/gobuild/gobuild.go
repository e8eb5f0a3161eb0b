// Package gobuild runs the go tool for the tests and lets several processes share
// what it builds. It knows nothing of what the programs are.
package gobuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Options says what to build. Dir, Package and Out are required.
type Options struct {
	// Dir is the directory of the module, or one inside it.
	Dir string
	// Package is the command to build, as the go tool names it.
	Package string
	// Others are further commands to build in the same run, which keeps all
	// processors busy while one of them is linked.
	Others []string
	// Out is the absolute path of the binary; with Others, that of a directory that
	// exists, which gets each under the last element of its package's path.
	Out string
	// Overlay is a file that names files to be built in the place of others, see go help
	// build; empty for none.
	Overlay string
	// ModFile is a file to take in the place of go.mod, see go help build; empty for none.
	ModFile string
	// Tags are build tags, separated by commas; empty for none.
	Tags string
	// LDFlags goes to the linker.
	LDFlags string
	// Race links the race detector in, which needs a C compiler; without it the
	// build runs without cgo and needs none.
	Race bool
	// Progress gets a line now and then while a long build runs; nil discards them.
	Progress io.Writer
}

func (o *Options) complete() error {
	if o.Dir == "" || o.Package == "" || o.Out == "" {
		return errors.New("go build: directory, package and output are required")
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

// Build runs go build; its output is in the error if it fails.
func Build(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	// The two variants compile every package with the same flags as a release build
	// and a test with -race do, so they share what those left in the build cache.
	args, cgo := []string{"build", "-trimpath"}, "CGO_ENABLED=0"
	if o.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	if o.Overlay != "" {
		args = append(args, "-overlay", o.Overlay)
	}
	if o.ModFile != "" {
		args = append(args, "-modfile", o.ModFile)
	}
	if o.Tags != "" {
		args = append(args, "-tags", o.Tags)
	}
	args = append(args, "-buildvcs=false", "-ldflags", o.LDFlags, "-o", o.Out)
	stop := tick(o.Progress)
	defer stop()
	_, err := Go(ctx, o.Dir, []string{cgo}, append(append(args, o.Package), o.Others...)...)
	return err
}

// Go runs the go tool in dir, with env added to this process's environment, and
// returns its trimmed standard output. The error holds what it wrote to stderr.
func Go(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	// On an interrupt the go tool ends its compilers itself; killed, it would
	// leave them behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", cmd, dir, errors.Join(err, ctx.Err()), stderr.Bytes())
	}
	return string(bytes.TrimSpace(stdout.Bytes())), nil
}

// tick tells every 20 s that a build goes on, until the returned function is
// called; that function waits for the ticking goroutine.
func tick(w io.Writer) (stop func()) {
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		start := time.Now()
		ticker := time.NewTicker(20 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(w, "  still building after %s\n", time.Since(start).Round(time.Second))
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-gone }
}
