package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/volume"
)

// settle is how long a node must be without the plugin before a pod that waits there does not count as a laggard. A DaemonSet replaces a
// pod within a second.
const settle = 5 * time.Second

// noLimit is the default of --timeout with --watch.
const noLimit = time.Duration(math.MaxInt64)

// convergedOptions are the flags of converged.
type convergedOptions struct {
	cluster   *clusterOptions
	output    *output
	selector  string
	timeout   time.Duration
	watch     bool
	allowNone bool
	opened    bool
	revision  string
}

func newConvergedCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &convergedOptions{cluster: newClusterOptions(flags), timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "converged (TYPE/NAME ... | TYPE NAME ... | TYPE -l LABELS)",
		Short: "Wait until all refvol volumes show the current version of objects",
		Long: `The command waits until each volume that names an object shows the object's current version, or until
--timeout. It asks the API server for the versions of the objects, without their values, and the plugin of
each node by a port-forward, with your own rights. At the end it lists the volumes that lag, and the nodes
whose volumes are not known. Until then, it reports changes on standard error.

docs/status.md#converged lists what does not lag, and what success does not cover: native references,
volumes mounted by subPath, and whether the applications have read the files.

With --opened the object's files in each volume must also have been opened at that version. This does not
prove who opened them, or that the version is in use. It also covers the variables of pods with the label
refvol.dev/restart.

The exit status is:
  0  All volumes show the current version.
  1  A volume does not show it, or an object does not exist.
  2  The answer is not known: requests failed until --timeout, a right is missing, or the command line is wrong.
  3  No volume names an object, for example because the namespace is wrong. The command does not wait
     then. With --allow-none the exit status is 0.`,
		Example: `  # Revoke a password once all volumes show the new one, and it was opened
  kubectl refvol converged secret/db -n shop --opened --timeout=10m && ./revoke-the-old-password

  # Several objects
  kubectl refvol converged secret/db configmap/app -n shop
  kubectl refvol converged secrets,configmaps -l app=web -n shop

  # Wait until all volumes show what a commit holds
  kubectl refvol converged configmap/app secret/db -n shop --revision=4f2a91c

  # Print each change, with its time
  kubectl refvol converged secret/db -n shop -w`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.watch && !cmd.Flags().Changed("timeout") {
				opts.timeout = noLimit
			}
			return opts.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	opts.output = newOutput(cmd, outputName)
	opts.cluster.addFlags(cmd.Flags())
	opts.cluster.addStatusFlags(cmd.Flags())
	fs := cmd.Flags()
	fs.StringVarP(&opts.selector, "selector", "l", opts.selector, "The labels of the objects. Objects that get them meanwhile count, too.")
	fs.DurationVar(&opts.timeout, "timeout", opts.timeout, "The time to wait before giving up. Zero means check once, negative means wait for a week. With --watch, the default is no limit.")
	fs.BoolVarP(&opts.watch, "watch", "w", opts.watch, "If true, the command prints each change, and doesn't end when all volumes show the version.")
	fs.BoolVar(&opts.opened, "opened", opts.opened, "If true, the files must have been opened, too.")
	fs.StringVar(&opts.revision, "revision", opts.revision, "The value that all objects must have in the annotation refvol.dev/revision, such as a commit.")
	fs.BoolVar(&opts.allowNone, "allow-none", opts.allowNone, "If true, an object that exists and that no volume names has converged.")
	return cmd
}

func (o *convergedOptions) validate() error {
	if o.revision != "" && !volume.Revision(o.revision).IsValid() {
		return fmt.Errorf("--revision: Invalid value: a text of %d bytes: must be 1 to %d letters, digits and . _ - / : @ +", len(o.revision), volume.MaxRevision)
	}
	return o.output.validate()
}

func (o *convergedOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	return o.waiter(c, args, stdout, stderr).wait(ctx, o.timeout)
}

// waiter returns what waits as the flags say.
func (o *convergedOptions) waiter(c *cluster, args []string, stdout, stderr io.Writer) *waiter {
	all := c.fleet()
	all.Settle = settle
	say := func(text string) {
		fmt.Fprintln(stderr, text) //nolint:errcheck // the result counts, not this text
	}
	return &waiter{
		find:      func(ctx context.Context) ([]fleet.Object, error) { return c.find(ctx, o.selector, args) },
		findAgain: o.selector != "",
		version:   c.version, survey: all.Collect, watch: o.watch, allowNone: o.allowNone, opened: o.opened,
		revision: volume.Revision(o.revision),
		write:    func(results []*fleet.Result) error { return o.print(stdout, results) },
		warn:     func(err error) { say(fmt.Sprintf("Warning: %v: trying again", err)) },
		progress: say,
	}
}
