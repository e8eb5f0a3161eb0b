// Command mutants breaks the code, one line at a time, and checks that the tests of the broken package
// notice each break. The breaks are in table/, a YAML file for a package: a list of name, file, old and
// new text, and the package whose tests must fail, if it isn't the file's.
//
// What is broken is a copy of the file, which go build takes in the place of the file. The tests run in
// a sandbox each (package sandbox), for nobody knows what broken code does to the machine. Without a
// sandbox nothing runs.
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
	"regexp"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 2 && os.Args[1] == insideCommand {
		os.Exit(runInside(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "mutants:", err)
		}
		os.Exit(1)
	}
}

// run tries the breaks that the arguments choose and prints a line for each. The error says how many
// went unnoticed.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "directory of the checkout")
	tables := flags.String("tables", "", "directory with the tables; empty: tools/mutants/table of the checkout")
	pkg := flags.String("package", "", "last element of the package whose breaks to try; empty: all")
	name := flags.String("name", "", "regular expression for the names of the breaks to try; empty: all")
	timeout := flags.Duration("timeout", 10*time.Minute, "how long the tests of a package may take; a break with which they take longer counts as noticed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument: %q", flags.Arg(0))
	}
	names, err := regexp.Compile(*name)
	if err != nil {
		return fmt.Errorf("-name: %w", err)
	}
	if *root, err = filepath.Abs(*root); err != nil {
		return err
	}
	if *tables == "" {
		*tables = filepath.Join(*root, "tools", "mutants", "table")
	}
	breaks, err := readTables(*tables)
	if err != nil {
		return err
	}
	breaks = choose(breaks, *pkg, names)
	if len(breaks) == 0 {
		return errors.New("no break is chosen")
	}
	work, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	r := &runner{root: *root, work: work, timeout: *timeout, out: stdout}
	return r.tryAll(ctx, breaks)
}
