// Command bench measures refvol against the floor: what a bare watch, a bare mount, a bare reflector, the kubelet or
// upstream's writer takes in the same minute on the same machine. It runs the plugin's real binary on a real API
// server, in the place of a kubelet, and writes results.json; README.md explains each figure.
//
// It owns the scenarios. What they measure is judged in one place, the goals; a scenario itself fails only if
// something is missing or lost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/refvol/refvol/e2e/suites/bench/measure"
	"github.com/refvol/refvol/internal/sandbox"
)

func main() {
	if err := runMain(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

// settings is what the command line says.
type settings struct {
	results, table, book, plugin string
	noReceipts                   bool
	// short asks for the form that is for checking, not for measuring.
	short bool
}

// runMain runs the scenarios that belong where this program runs: those that make mounts in the sandbox, those that
// bring a machine of their own outside.
func runMain(args []string) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("scenario", "", "comma-separated names of scenarios; empty: all")
	flags.StringVar(&s.results, "results", "results.json", "file to write the results to")
	flags.StringVar(&s.table, "table", "", "Markdown file to put a table of the goals into, and measure nothing; empty: none")
	flags.StringVar(&s.book, "book", "README.md", "with -table: Markdown file to put the runs and the steps of an update into")
	flags.StringVar(&s.plugin, "plugin", "", "plugin binary to measure; empty: build this checkout's")
	flags.BoolVar(&s.noReceipts, "no-receipts", false, "start plugins with --open-receipts=false, and write no results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	if s.table != "" {
		return s.writeTables()
	}
	chosen, err := choose(*names)
	outside := sandbox.Check() != nil
	chosen = slices.DeleteFunc(chosen, func(c scenario) bool { return c.outside != outside })
	if err != nil || len(chosen) == 0 {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := newBench(ctx, s, os.Stdout)
	if err != nil {
		return err
	}
	// What was measured before a failure is kept.
	return errors.Join(b.runAll(ctx, chosen), b.finish(), b.stop())
}

// writeTables puts what results say of the goals into the page for users, and the runs and the steps of an update into the lab book.
func (s settings) writeTables() error {
	f, err := measure.ReadFile(s.results)
	if err != nil {
		return err
	}
	table, err := f.GoalsTable(goals())
	if err != nil {
		return err
	}
	return errors.Join(
		measure.WriteTables(s.table, table),
		measure.WriteTables(s.book, f.ListRuns()+"\n"+stepsTable(f)),
	)
}

// choose returns the scenarios of some names, all for none.
func choose(names string) ([]scenario, error) {
	all := scenarios()
	if names == "" {
		return all, nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("scenario %q: want one of those in docs/benchmarks.md", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
