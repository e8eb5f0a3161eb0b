// Package gobuild runs the go tool for the tests and lets several processes share what it builds. It knows nothing of
// what the programs are.
package gobuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// CacheDir returns where built programs are kept between runs: $REFVOL_CACHE, else refvol in the user's cache
// directory. It is outside the checkout, so a clean checkout does not build everything again.
func CacheDir() (string, error) {
	if dir := os.Getenv("REFVOL_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (or set REFVOL_CACHE): %w", err)
	}
	return filepath.Join(dir, "refvol"), nil
}

// Options says what to build. Dir, Package and Out are required.
type Options struct {
	// Dir is the directory of the module, or one inside it.
	Dir string
	// Package is the command to build, as the go tool names it.
	Package string
	// Others are further commands to build in the same run.
	Others []string
	// Out is the absolute path of the binary; with Others, that of a directory that exists, which gets each under the
	// last element of its package's path.
	Out string
	// ModFile, Tags and LDFlags are the flags of these names, see go help build; empty for none.
	ModFile, Tags, LDFlags string
	// Race links the race detector in, which needs a C compiler; without it the build runs without cgo.
	Race bool
	// Progress gets a line if the build has to wait for another one.
	Progress io.Writer
}

// Build runs go build; its output is in the error if it fails.
func Build(ctx context.Context, o Options) error {
	// The two variants compile every package with the same flags as a release build and a test with -race do, so they
	// share what those left in the build cache.
	args, cgo := []string{"build", "-trimpath", "-buildvcs=false"}, "CGO_ENABLED=0"
	if o.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	for _, flag := range [][2]string{{"-modfile", o.ModFile}, {"-tags", o.Tags}, {"-ldflags", o.LDFlags}, {"-o", o.Out}} {
		if flag[1] != "" {
			args = append(args, flag[:]...)
		}
	}
	_, err := Go(ctx, o.Dir, []string{cgo}, append(append(args, o.Package), o.Others...)...)
	return err
}

// Go runs the go tool in dir, with env added to this process's environment, and returns its trimmed standard output.
// The error holds what it wrote to stderr.
func Go(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	// On an interrupt the go tool ends its compilers itself; killed, it would leave them behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", cmd, dir, errors.Join(err, ctx.Err()), stderr.Bytes())
	}
	return string(bytes.TrimSpace(stdout.Bytes())), nil
}

// Lock takes an exclusive lock on a file, made if it is missing, and tells progress once if it has to wait for it.
// The kernel drops the lock if this process ends before unlock is called.
func Lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the build lock: %w", err)
	}
	for told := false; ; told = true {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		case ctx.Err() != nil:
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, ctx.Err()), f.Close())
		case !told:
			fmt.Fprintf(progress, "waiting for another build (%s)\n", path)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}
