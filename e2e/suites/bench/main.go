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
func (s settings) writeTables() (err error) {
	defer catch(&err)
	f := must(measure.ReadFile(results))
	fatal(measure.WriteTables(s.table, must(f.GoalsTable(goals()))))
	return measure.WriteTables(s.book, f.ListRuns()+"\n"+stepsTable(f))
}

// scenario is one of those of docs/benchmarks.md. README.md says how each measures.
type scenario struct {
	id, name string
	// run measures, and checks that nothing is missing or lost.
	run func(ctx context.Context, l *lab) error
	// bare is a scenario that needs no control plane: l has none.
	bare bool
	// outside is one that runs outside of the sandbox, in which no container engine can start, and has no short form.
	// It is bare.
	outside bool
}

func scenarios() []scenario {
	return []scenario{
		{id: "B1", name: "update", run: runUpdate},
		{id: "B2", name: "native", run: runNative, bare: true, outside: true},
		{id: "B3", name: "fanout", run: runFanout},
		{id: "B5", name: "publish", run: runPublish},
		{id: "B6", name: "memory", run: runMemory},
		{id: "B7", name: "idle", run: runIdle},
		{id: "B8", name: "restart", run: runRestart, bare: true},
		{id: "B9", name: "writer", run: runWriter, bare: true},
		{id: "B12", name: "recovery", run: runRecovery, bare: true},
		{id: "B15", name: "rehearsal", run: runRehearsal, bare: true},
		{id: "B16", name: "open", run: runOpen},
	}
}

// goals are those of docs/benchmarks.md. A result of a reference begins with that word, and no digit.
func goals() []measure.Goal {
	return []measure.Goal{
		{Scenario: "B1", Results: "update.added_ms", Figure: "p50", Bound: 0.5},
		{Scenario: "B1", Results: "update.added_ms", Figure: "p99", Bound: 3},
		{Scenario: "B1", Results: "update.floor_ratio", Figure: "value", Bound: 1.3},
		{Scenario: "B1", Results: "update.*lost", Figure: "value", Bound: 0},
		{Scenario: "B1", Results: "update.node_ratio", Figure: "value", Bound: 1.1},
		{Scenario: "B2", Results: "native.ratio", Figure: "value", Bound: 1000, Least: true},
		{Scenario: "B3", Results: "fanout.last_ms", Figure: "p99", Bound: 15},
		{Scenario: "B3", Results: "fanout.floor_ratio", Figure: "value", Bound: 1.3},
		{Scenario: "B3", Results: "fanout.lost", Figure: "value", Bound: 0},
		{Scenario: "B5", Results: "publish.warm_ms", Figure: "p50", Bound: 1},
		{Scenario: "B5", Results: "publish.warm_ms", Figure: "p99", Bound: 5},
		{Scenario: "B5", Results: "publish.cold_ms", Figure: "p50", Bound: 3},
		{Scenario: "B5", Results: "publish.*burst_s", Figure: "value", Bound: 1},
		{Scenario: "B5", Results: "publish.node_*_ratio", Figure: "value", Bound: 1.25},
		{Scenario: "B6", Results: "memory.resident_ratio", Figure: "value", Bound: 0.7},
		{Scenario: "B6", Results: "memory.watches_per_object", Figure: "value", Bound: 1},
		{Scenario: "B7", Results: "idle.cpu_percent", Figure: "value", Bound: 0.08},
		{Scenario: "B7", Results: "idle.requests_per_minute", Figure: "value", Bound: 0},
		{Scenario: "B8", Results: "restart.current_s", Figure: "p50", Bound: 0.9},
		{Scenario: "B9", Results: "writer.first_*_ratio", Figure: "value", Bound: 1.1},
		{Scenario: "B9", Results: "writer.floor_1_ratio", Figure: "value", Bound: 1.3},
		{Scenario: "B9", Results: "writer.same_*00_ratio", Figure: "value", Bound: 2, Least: true},
		{Scenario: "B9", Results: "writer.change_1000_ratio", Figure: "value", Bound: 3, Least: true},
		{Scenario: "B12", Results: "recovery.[0-9]*_ratio", Figure: "value", Bound: 1.5},
		{Scenario: "B12", Results: "recovery.[0-9]*x1000_*_handshakes", Figure: "value", Bound: 30},
		{Scenario: "B12", Results: "recovery.5x600_*_handshakes", Figure: "value", Bound: 26},
		{Scenario: "B12", Results: "recovery.[0-9]*_refused_added", Figure: "value", Bound: 0},
		{Scenario: "B12", Results: "recovery.[0-9]*_steady_lost", Figure: "value", Bound: 0},
		{Scenario: "B15", Results: "rehearsal.[0-9]*_ratio", Figure: "value", Bound: 2},
		{Scenario: "B15", Results: "rehearsal.[0-9]*_handshakes", Figure: "value", Bound: 20.01},
		{Scenario: "B15", Results: "rehearsal.[0-9]*_refused_added", Figure: "value", Bound: 0},
		{Scenario: "B16", Results: "open.added_us", Figure: "value", Bound: 1.5},
	}
}
