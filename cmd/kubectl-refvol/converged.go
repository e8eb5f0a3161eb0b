package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/refvol/refvol/pkg/command"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

const (
	// shortestPause is the shortest pause between two rounds of questions.
	shortestPause = time.Second
	// longestPause is the longest one after a round that failed, as while an API server is replaced.
	longestPause = 30 * time.Second
	// settle is how long a node has to be without the plugin, so that a pod which waits there does not lag. A DaemonSet
	// replaces a pod within a second.
	settle = 5 * time.Second
)

// convergedOptions are the flags of `converged`.
type convergedOptions struct {
	cluster   *clusterOptions
	output    string
	timeout   time.Duration
	watch     bool
	allowNone bool
	opened    bool
}

func newConvergedCommand() *cobra.Command {
	opts := &convergedOptions{cluster: newClusterOptions(), output: status.OutputTable, timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "converged (secret|configmap)/NAME",
		Short: "Wait until all refvol volumes show an object's current version",
		Long: `Asks for the object's version, without its values, and asks the plugin of each node by a
port-forward, both with your own rights, until each volume that names the object shows that
version, or until --timeout ends. Then it lists the volumes that don't, and the nodes of which
that isn't known.

Pods that have not started, pods that wait on a node without the plugin, and volumes from which
the object was withdrawn, as the pods may not have it any more, are listed apart.

It does not cover native references to the object (env, volumes of other types), containers that
mount a volume by subPath, unless its writeStrategy is InPlace (a file keeps its content, and a
directory becomes empty with the first update), nor whether the applications have read the new
files. With --opened each volume's files of the object must have been opened since they show that
version: that proves that somebody opened them, not who, nor that it is in use.

Exits with status 0 if all volumes show the current version, 1 if not, or if the object does not
exist, 2 if that is not known: a request failed, or the command line is wrong. It exits at once
with status 3 if no volume names the object, as with a wrong namespace; with --allow-none, that
is 0.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if opts.watch && !cmd.Flags().Changed("timeout") {
				opts.timeout = 0
			}
			return opts.run(cmd.Context(), strings.Join(args, "/"), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	opts.cluster.addFlags(cmd.Flags(), true)
	fs := cmd.Flags()
	fs.StringVarP(&opts.output, "output", "o", opts.output, "table, json or yaml")
	fs.DurationVar(&opts.timeout, "timeout", opts.timeout, "how long to wait for all volumes; 0: until it is interrupted (default with --watch)")
	fs.BoolVarP(&opts.watch, "watch", "w", opts.watch, "go on when all volumes show the version, and print each change")
	fs.BoolVar(&opts.opened, "opened", opts.opened, "wait until the files have been opened, too")
	fs.BoolVar(&opts.allowNone, "allow-none", opts.allowNone, "an object that exists and that no volume names has converged")
	return cmd
}

// parseObject reads KIND/NAME, of which kubectl takes KIND NAME for the same.
func parseObject(text, namespace string) (fleet.Object, error) {
	kind, name, _ := strings.Cut(text, "/")
	object := fleet.Object{Namespace: namespace, Name: name}
	switch kind {
	case "secret", "secrets":
		object.Kind = "Secret"
	case "configmap", "configmaps", "cm":
		object.Kind = "ConfigMap"
	}
	if object.Kind == "" || name == "" || strings.Contains(name, "/") {
		return object, fmt.Errorf("%q is neither secret/NAME nor configmap/NAME", text)
	}
	return object, nil
}

func (o *convergedOptions) validate() error {
	if o.output == status.OutputWide {
		return fmt.Errorf("--output: Unsupported value: %q: must be table, json or yaml", o.output)
	}
	if o.timeout < 0 {
		return fmt.Errorf("--timeout: %s is negative", o.timeout)
	}
	return status.ValidateOutput(o.output)
}

func (o *convergedOptions) run(ctx context.Context, argument string, stdout, stderr io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	object, err := parseObject(argument, c.namespace)
	if err != nil {
		return err
	}
	all := c.fleet()
	all.Settle = settle
	w := &waiter{
		object: object, version: c.version, survey: all.Collect, watch: o.watch, allowNone: o.allowNone, opened: o.opened,
		write: func(v *fleet.Result) error { return printVerdict(stdout, o.output, v) },
		warn: func(err error) {
			fmt.Fprintf(stderr, "Warning: %v: trying again\n", err) //nolint:errcheck // The verdict is what counts.
		},
	}
	return w.wait(ctx, o.timeout)
}

// waiter asks until an object's version has arrived everywhere. It is for one call of wait.
type waiter struct {
	object  fleet.Object
	version func(context.Context, fleet.Object) (*status.Version, error)
	survey  func(context.Context) (*fleet.Survey, error)
	// write prints a verdict for the caller.
	write func(*fleet.Result) error
	// warn tells why a round failed that is repeated.
	warn func(error)
	// watch has it go on, and print each verdict that differs from the one before.
	watch bool
	// allowNone has the answer be yes if no volume names the object.
	allowNone bool

	// opened has the answer be yes only if the files have been opened, too.
	opened bool

	// last is the last verdict, and printed the one that was printed last.
	last, printed *fleet.Result
}

// wait returns nil if the last verdict is yes. timeout bounds the time, 0 for no bound.
func (w *waiter) wait(ctx context.Context, timeout time.Duration) error {
	deadline := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		deadline, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("--timeout %s has passed", timeout))
		defer cancel()
	}
	before, err := w.version(deadline, w.object)
	changed := false // in the round before
	retry := wait.Backoff{Duration: shortestPause, Factor: 2, Steps: 6, Cap: longestPause}
	for again := retry; err == nil; {
		began := time.Now()
		if err = w.round(ctx, deadline, before); err != nil {
			if w.last == nil || deadline.Err() != nil || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
				break
			}
			w.warn(err)
			pause(deadline, again.Step())
			err = context.Cause(deadline)
			continue
		}
		again = retry
		if w.last.Converged || w.last.None || w.last.Current == nil || w.watch {
			if err = w.tell(); err != nil || !w.watch {
				return errors.Join(err, outcome(w.last))
			}
		}
		// A version that came during the round may be everywhere already. One that comes in each round
		// must not have all plugins asked without a pause.
		if !w.last.Changed || changed {
			pause(deadline, max(shortestPause, time.Since(began)))
		}
		changed = w.last.Changed
		before, err = w.last.Current, context.Cause(deadline)
	}
	if w.last == nil || deadline.Err() == nil {
		return err
	}
	return errors.Join(w.tell(), outcome(w.last))
}

// round asks all plugins once, and sets the last verdict. deadline ends the questions, and ctx all of it.
func (w *waiter) round(ctx, deadline context.Context, before *status.Version) error {
	survey := &fleet.Survey{}
	if before != nil {
		var err error
		if survey, err = w.survey(deadline); err != nil {
			return err
		}
		if w.last != nil && deadline.Err() != nil {
			// The last round that had its time says more than one that was cut short.
			return context.Cause(deadline)
		}
	}
	after, err := w.version(ctx, w.object)
	if err != nil {
		return err
	}
	w.last = fleet.Evaluate(w.object, w.opened, before, after, survey)
	if w.allowNone {
		w.last.AcceptNone()
	}
	return nil
}

// tell prints the last verdict, unless it says the same as the one printed before.
func (w *waiter) tell() error {
	if w.printed != nil && w.printed.Same(w.last) {
		return nil
	}
	w.printed = w.last
	return w.write(w.last)
}

// outcome returns nil for yes.
func outcome(v *fleet.Result) error {
	switch {
	case v.Converged:
		return nil
	case v.Current == nil:
		return command.WithStatus(command.No, fmt.Errorf("%s does not exist", v.Object))
	case v.None:
		return command.WithStatus(command.None, fmt.Errorf("no refvol volume shows %s: is it the right name and namespace? --allow-none accepts this", v.Object))
	case len(v.Laggards) == 0:
		return command.WithStatus(command.No, fmt.Errorf("%s changes too often to be found everywhere", v.Object))
	}
	return command.WithStatus(command.No, fmt.Errorf("%s: not everywhere: volumes and nodes that lag: %d", v.Object, len(v.Laggards)))
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
