package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// outcome is a line of the table.
type outcome struct {
	kernel, part, result string
	took                 time.Duration
}

// runner is what all machines have in common.
type runner struct {
	// root is the checkout, cache is where what is kept goes, and work what is not.
	root, cache, work string
	// programs are the test binaries that were built, by the package's directory.
	programs map[string]string
	// plugin is the plugin's binary, once it is built.
	plugin   string
	outcomes []outcome
}

// run boots each machine of the plan, one after another, and prints what came of it. The
// error says whether a test failed.
func run(ctx context.Context, plan []kernel) error {
	r, err := newRunner()
	if err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	for _, k := range plan {
		if err := r.runKernel(ctx, k); err != nil {
			return errors.Join(err, r.report())
		}
	}
	return r.report()
}

func newRunner() (*runner, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	cache, err := gobuild.CacheDir()
	if err != nil {
		return nil, err
	}
	cache = filepath.Join(cache, "kernels")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "refvol-kernels-")
	return &runner{root: root, cache: cache, work: work, programs: map[string]string{}}, err
}

// runKernel boots each machine of a kernel.
func (r *runner) runKernel(ctx context.Context, k kernel) error {
	dir, err := r.debian(ctx, "kernel", k.suite)
	if err != nil {
		return err
	}
	for i, m := range k.machines {
		if err := r.runMachine(ctx, dir, fmt.Sprintf("%s-%d", k.name, i+1), m); err != nil {
			return fmt.Errorf("kernel %s: %w", k.name, err)
		}
	}
	return nil
}

// keptFor is how long what came from Debian is used: its releases get new kernels, and the newest becomes another one.
const keptFor = 7 * 24 * time.Hour

// debian returns a directory with something of a release of Debian, see debian.sh.
func (r *runner) debian(ctx context.Context, what, suite string) (string, error) {
	dir := filepath.Join(r.cache, what+"-"+suite)
	switch info, err := os.Stat(dir); {
	case err == nil && time.Since(info.ModTime()) < keptFor:
		return dir, nil
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return "", err
	}
	fmt.Printf("getting the %s of Debian's %s\n", what, suite)
	script := filepath.Join(r.root, "e2e", "suites", "kernels", "debian.sh")
	made := dir + ".new"
	if err := os.RemoveAll(made); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, script, what, suite, made).CombinedOutput(); err != nil {
		return "", fmt.Errorf("get the %s of Debian's %s: %w\n%s", what, suite, err, out)
	}
	return dir, errors.Join(os.RemoveAll(dir), os.Rename(made, dir))
}

// report prints the table.
func (r *runner) report() error {
	failed := 0
	fmt.Println()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "kernel\twhat ran\tresult\tseconds")
	for _, o := range r.outcomes {
		if !strings.HasPrefix(o.result, passed) {
			failed++
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%.0f\n", o.kernel, o.part, o.result, o.took.Seconds())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d parts failed", failed, len(r.outcomes))
	}
	return nil
}
