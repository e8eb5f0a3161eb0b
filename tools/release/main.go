// Command release makes all that a release consists of: binaries, the images' archives, the chart,
// bills of materials, the plugin's manifest for krew, and checksums. The same commit and version give the same bytes, on any machine.
//
// It builds with the Makefile's own targets, and knows nothing of what the programs do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "release:", err)
		}
		stop()
		os.Exit(1)
	}
}

// semantic matches what a git tag of a release, or a commit after one, is called.
var semantic = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(-[0-9A-Za-z.-]+)?$`)

type options struct {
	// root is the checkout, and output the directory to make: both absolute.
	root, output string
	// version is semantic and begins with a v; revision is the commit.
	version, revision string
	programs          []program
}

// number is the version without its v, as Helm writes it.
func (o *options) number() string { return o.version[1:] }

// final tells a release from what comes before one.
func (o *options) final() bool { return semantic.FindStringSubmatch(o.version)[2] == "" }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if err := release(ctx, opts); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: release %s of %s\n", opts.output, opts.version, opts.revision)
	return err
}

func parse(args []string, stderr io.Writer) (*options, error) {
	opts := &options{programs: programs()}
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.root, "root", "", "the `directory` of the checkout")
	flags.StringVar(&opts.output, "output", "", "the `directory` to make; what it holds is removed")
	flags.StringVar(&opts.version, "version", "", "the semantic `version`, with a v")
	flags.StringVar(&opts.revision, "revision", "", "the `commit`")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected arguments %q", flags.Args())
	}
	if !semantic.MatchString(opts.version) {
		return nil, fmt.Errorf("-version: %q must be a semantic version with a v, as in v1.2.3", opts.version)
	}
	return opts, nil
}
