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

// bench runs scenarios one after the other, each in a world of its own.
type bench struct {
	settings
	dir       string
	out       io.Writer
	binaries  controlplane.Binaries
	reference string // a program
	report    *measure.Report
	ran       map[string]bool
	// isAlone means that the machine did nothing else when the run began.
	isAlone bool
}

func newBench(ctx context.Context, s settings, out io.Writer) (b *bench, err error) {
	b = &bench{settings: s, out: out, report: &measure.Report{}, ran: map[string]bool{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	defer catch(&err)
	// The readers and bare watches of this process must not wait for a collection of its garbage.
	debug.SetGCPercent(2000)
	b.isAlone = must(measure.IsAlone())
	b.dir = must(os.MkdirTemp("", "refvol-bench-"))
	b.binaries = must(harness.BuildControlPlane(ctx, os.Stderr))
	if b.plugin == "" {
		b.plugin = must(harness.BuildPlugin(ctx, b.dir, false, os.Stderr))
	}
	b.reference = filepath.Join(b.dir, "reference")
	return b, gobuild.Build(ctx, gobuild.Options{
		Dir: filepath.Join(must(harness.Repository()), "e2e", "suites", "bench"), Package: "./reference", Out: b.reference, Progress: os.Stderr,
	})
}

func (b *bench) stop() error { return os.RemoveAll(b.dir) }

// runAll runs the scenarios; one that fails doesn't keep the others from it.
func (b *bench) runAll(ctx context.Context, chosen []scenario) (err error) {
	for _, s := range chosen {
		began, told := time.Now(), len(b.report.Results)
		b.logf("%s %s", s.id, s.name)
		failed := b.runOne(ctx, s)
		took := time.Since(began).Round(time.Second)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", s.id, s.name, failed))
			b.logf("  failed after %s: %v", took, failed)
			continue
		}
		b.ran[s.id] = true
		for _, r := range b.report.Results[told:] {
			b.logf("  %s", r)
		}
		b.logf("  took %s", took)
	}
	return err
}

func (b *bench) runOne(ctx context.Context, s scenario) (err error) {
	l, err := b.newLab(ctx, s.id, s.bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	defer catch(&err)
	return s.run(ctx, l)
}

// endError ends the functions up to the next catch.
type endError struct{ error }

// catch is deferred: it turns what ended the function by must or fatal into the function's error.
func catch(err *error) {
	switch ended := recover().(type) { //nolint:revive // Each caller defers catch.
	case nil:
	case endError:
		*err = errors.Join(ended.error, *err)
	default:
		panic(ended)
	}
}

// must returns a value, or ends the scenario because of the error. In another goroutine than the scenario's, it needs a catch.
func must[T any](value T, err error) T {
	fatal(err)
	return value
}

func fatal(err error) {
	if err != nil {
		panic(endError{err})
	}
}

// finish writes what was measured, and returns an error if not all goals were met. The short form has too few samples
// to be judged.
func (b *bench) finish() error {
	if b.short {
		return nil
	}
	var err error
	if !b.isAlone {
		b.logf("the machine was busy when the run began (load above 1): only ratios are judged")
	}
	for _, g := range goals() {
		if !b.ran[g.Scenario] || !b.isAlone && !g.IsRatio() {
			continue
		}
		o, missing := g.Check(b.report.Results)
		b.logf("%s", o)
		if err = errors.Join(err, missing); len(o.Missed) > 0 {
			err = errors.Join(err, fmt.Errorf("the goal of %s is not met", g.Results))
		}
	}
	return errors.Join(err, measure.Renew(results, b.report.Results))
}

func (b *bench) logf(format string, args ...any) { fmt.Fprintf(b.out, format+"\n", args...) }
