// Command bench measures refvol against the floor: what a bare watch, a bare mount, a
// bare reflector, the kubelet or upstream's writer takes in the same minute on the same
// machine. It runs the plugin's real binary on a real API server, in the place of a
// kubelet, and writes results.json; docs/benchmarks.md explains each figure.
//
// It owns the scenarios, one file each. What they measure is judged in one place, the
// goals; a scenario itself fails only if something is missing or lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/internal/sandbox"
)

// errMissed is that all was measured, but not all goals were met.
var errMissed = errors.New("not all goals are met")

func main() {
	if err := runMain(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// runMain runs the scenarios that belong where this program runs: those that make mounts in the sandbox, those
// that bring a machine of their own outside.
func runMain(args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	if s.table != "" {
		return writeTable(s)
	}
	chosen, err := choose(s.names)
	if err != nil {
		return err
	}
	outside := sandbox.Check() != nil
	chosen = slices.DeleteFunc(chosen, func(c scenario) bool { return c.outside != outside })
	if len(chosen) == 0 {
		return nil
	}
	return run(s, chosen)
}

// writeTable puts the results that there are into a document, and a plot beside it.
func writeTable(s settings) error {
	f, err := measure.ReadFile(s.results)
	if err != nil {
		return err
	}
	plot := filepath.Join(filepath.Dir(s.table), "propagation.svg")
	return errors.Join(f.WriteTable(s.table, goals()), f.WritePlot(plot))
}

// settings is what the command line says.
type settings struct {
	// names are the scenarios to run; empty: all.
	names []string
	// results is the file to write.
	results string
	// table is the document to put a table of the results into, in the place of a run.
	table string
	// plugin is a binary to measure in place of this checkout's; empty: that.
	plugin string
	// short asks for the form that is for checking, not for measuring.
	short bool
	// noReceipts starts plugins with --open-receipts=false, to be compared with those of another run. No results are written.
	noReceipts bool
}

func parse(args []string) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("scenario", "", "comma-separated names of scenarios; empty: all")
	flags.StringVar(&s.results, "results", "results.json", "file to write the results to")
	flags.StringVar(&s.table, "table", "", "Markdown file to put a table of the results into, and measure nothing; empty: none")
	flags.StringVar(&s.plugin, "plugin", "", "plugin binary to measure; empty: build this checkout's")
	flags.BoolVar(&s.noReceipts, "no-receipts", false, "start plugins with --open-receipts=false, and write no results")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	if *names != "" {
		s.names = strings.Split(*names, ",")
	}
	return s, nil
}

// run runs scenarios and writes their results.
func run(s settings, chosen []scenario) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := newBench(ctx, s, os.Stdout)
	if err != nil {
		return err
	}
	// What was measured before a failure is kept.
	return errors.Join(b.runAll(ctx, chosen), b.write(), b.judge(os.Stdout), b.stop())
}

// choose returns the scenarios of some names, all for none.
func choose(names []string) ([]scenario, error) {
	all := scenarios()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []scenario
	for _, name := range names {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("scenario %q: want one of those in docs/benchmarks.md", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func logf(w io.Writer, format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
