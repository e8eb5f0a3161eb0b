package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// scenario is one of those of docs/benchmarks.md.
type scenario struct {
	id, name string
	// run measures, and checks that nothing is missing or lost.
	run func(ctx context.Context, l *lab) error
	// bare is a scenario that needs no control plane: l has none.
	bare bool
	// outside is one that runs outside of the sandbox, in which no container engine can
	// start, and has no short form. It is bare.
	outside bool
}

// bench runs scenarios one after the other, each in a world of its own.
type bench struct {
	settings
	dir      string
	out      io.Writer
	binaries controlplane.Binaries
	// plugin and reference are programs.
	plugin, reference string
	report            *measure.Report
	ran               map[string]bool
	// told is how many results were printed.
	told int
	// shared is the cluster of all scenarios in the short form, once one has needed it.
	shared *cluster
}

// garbagePercent is how much garbage this process lets pile up, in percent of what it uses:
// its readers and its bare watches must not wait for a collection of its own.
const garbagePercent = 2000

// newBench builds what is missing. The caller stops it.
func newBench(ctx context.Context, s settings, out io.Writer) (_ *bench, err error) {
	debug.SetGCPercent(garbagePercent)
	b := &bench{settings: s, out: out, plugin: s.plugin, report: &measure.Report{}, ran: map[string]bool{}}
	if b.dir, err = os.MkdirTemp("", "refvol-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(b.dir))
		}
	}()
	if b.binaries, err = harness.BuildControlPlane(ctx, os.Stderr); err != nil {
		return nil, err
	}
	if b.plugin == "" {
		if b.plugin, err = harness.BuildPlugin(ctx, b.dir, false, os.Stderr); err != nil {
			return nil, err
		}
	}
	b.reference, err = buildReference(ctx, b.dir)
	return b, err
}

// stop ends what was started for all scenarios.
func (b *bench) stop() error {
	var err error
	if b.shared != nil {
		err = b.shared.Stop()
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// buildReference builds the program that stands for what is bare.
func buildReference(ctx context.Context, dir string) (string, error) {
	repo, err := harness.Repository()
	if err != nil {
		return "", err
	}
	o := gobuild.Options{
		Dir: filepath.Join(repo, "e2e", "suites", "bench"), Package: "./reference",
		Out: filepath.Join(dir, "reference"), Progress: os.Stderr,
	}
	return o.Out, gobuild.Build(ctx, o)
}

// runAll runs the scenarios; one that fails doesn't keep the others from it.
func (b *bench) runAll(ctx context.Context, chosen []scenario) error {
	var errs []error
	for _, s := range chosen {
		began := time.Now()
		logf(b.out, "%s %s", s.id, s.name)
		if err := b.runOne(ctx, s); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", s.id, s.name, err))
			logf(b.out, "  failed after %s: %v", time.Since(began).Round(time.Second), err)
			continue
		}
		b.ran[s.id] = true
		b.tell()
		logf(b.out, "  took %s", time.Since(began).Round(time.Second))
	}
	return errors.Join(errs...)
}

func (b *bench) runOne(ctx context.Context, s scenario) (err error) {
	l, err := b.newLab(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	return s.run(ctx, l)
}

// tell prints the results that were not printed yet.
func (b *bench) tell() {
	all := b.report.Results()
	for _, r := range all[b.told:] {
		logf(b.out, "%s", line(r))
	}
	b.told = len(all)
}

// write adds what was measured to the file of results. The short form measures nothing, and
// writes nothing.
func (b *bench) write() error {
	if b.short || b.noReceipts {
		return nil
	}
	machine, err := measure.ThisMachine()
	if err != nil {
		return err
	}
	old, err := measure.ReadFile(b.results)
	if err != nil {
		return err
	}
	outcomes, err := b.outcomes()
	if err != nil {
		return err
	}
	file := measure.File{
		Time: time.Now().UTC().Truncate(time.Second), Machine: machine,
		Versions: measure.Versions("k8s.io/kubernetes", "k8s.io/client-go"),
		Goals:    outcomes, Results: b.report.Results(),
	}
	return file.Write(b.results, old)
}

func line(r measure.Result) string {
	if r.Value != nil {
		return fmt.Sprintf("  %-50s %12.4g %s", r.Name, *r.Value, r.Unit)
	}
	return fmt.Sprintf("  %-50s p50 %9.4g  p99 %9.4g  max %9.4g %s (n %d)", r.Name, *r.P50, *r.P99, *r.Max, r.Unit, r.N)
}

// outcomes returns what came of the goals of the scenarios that were run.
func (b *bench) outcomes() ([]measure.Outcome, error) {
	return measure.Check(goals(), b.report.Results(), func(id string) bool { return b.ran[id] })
}

// judge prints what came of the goals, and returns an error if one was missed. The short
// form has too few samples to be judged.
func (b *bench) judge(w io.Writer) error {
	if b.short {
		return nil
	}
	outcomes, err := b.outcomes()
	for _, o := range outcomes {
		logf(w, "%s", o)
		if !o.Met {
			err = errMissed
		}
	}
	return err
}
