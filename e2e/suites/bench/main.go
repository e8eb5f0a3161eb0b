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

const results = "results.json"

// settings is what the command line says. The tables go into table, and those of the runs and of the steps of an update into book.
type settings struct {
	table, book, plugin string
	// short asks for the form that is for checking, not for measuring.
	short bool
}

// runMain runs the scenarios that belong where this program runs: those that make mounts in the sandbox, those that
// bring a machine of their own outside.
func runMain(args []string) error {
	s := settings{book: "README.md"}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	names := flags.String("scenario", "", "comma-separated names of scenarios; empty: all")
	flags.StringVar(&s.table, "table", "", "Markdown file to put a table of the goals into, and measure nothing; empty: none")
	flags.StringVar(&s.plugin, "plugin", "", "plugin binary to measure; empty: build this checkout's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	if s.table != "" {
		return s.writeTables()
	}
	outside := sandbox.Check() != nil
	chosen, wanted := scenarios(), strings.FieldsFunc(*names, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.ContainsFunc(chosen, func(c scenario) bool { return c.name == name }) {
			return fmt.Errorf("scenario %q: want one of those in docs/benchmarks.md", name)
		}
	}
	chosen = slices.DeleteFunc(chosen, func(c scenario) bool {
		return c.outside != outside || len(wanted) > 0 && !slices.Contains(wanted, c.name)
	})
	if len(chosen) == 0 {
		return nil
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
	f, err := measure.ReadFile(results)
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
