package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// rolloutOptions are the flags of rollout.
type rolloutOptions struct {
	cluster       *clusterOptions
	steps         []string
	to            string
	every         time.Duration
	timeout       time.Duration
	opened        bool
	allowRestarts int32
	maxUnhealthy  tolerance
	unreadyFor    time.Duration
	onFailure     string
	check         string
	// given are the flags of the command line that say which cluster and which plugins are meant.
	given []string
}

// The values of --on-failure.
const (
	revertCanary = "revert"
	keepCanary   = "keep"
)

// tolerance is a number or a percentage of unhealthy pods. It implements pflag.Value.
type tolerance struct{ count, percent int }

// of returns how many of some pods may be unhealthy.
func (t *tolerance) of(pods int) int { return t.count + pods*t.percent/100 }

// String returns the form of the command line.
func (t *tolerance) String() string {
	if t.percent > 0 {
		return share(t.percent)
	}
	return strconv.Itoa(t.count)
}

// Type names the value in the help.
func (*tolerance) Type() string { return "N|P%" }

// Set parses a number or a percentage.
func (t *tolerance) Set(text string) error {
	percent, isShare := volume.ParseShare(text)
	count, err := strconv.Atoi(text)
	switch {
	case isShare && text != "":
		*t = tolerance{percent: percent}
	case err == nil && count >= 0:
		*t = tolerance{count: count}
	default:
		return fmt.Errorf("%q is neither a number of pods nor a share from 0%% to 100%%", text)
	}
	return nil
}

func newRolloutCommand(flags *genericclioptions.ConfigFlags) *cobra.Command {
	opts := &rolloutOptions{
		cluster: newClusterOptions(flags), steps: []string{"1%", "10%", "50%", "100%"}, every: 2 * time.Minute, timeout: 5 * time.Minute,
		unreadyFor: 10 * time.Second, onFailure: revertCanary,
	}
	cmd := &cobra.Command{
		Use:   "rollout (TYPE/NAME ... | TYPE NAME ...)",
		Short: "Give a change to more and more pods, as long as they stay well",
		Long: `The command raises the share of a canary object (annotation refvol.dev/canary), or of the pods that take a held
version (refvol.dev/rollout), step by step. docs/rollout.md says how to write them.

Each step waits until every volume that may take the change shows it. Then it watches the pods that have the
change for --every. A pod is unhealthy if one of these is true:
  - Since it took the change, it has restarted more often than --allow-restarts.
  - It was ready, and has not been ready for --unready-for.
  - It has not become ready after --timeout.

Pods that are deleted or replaced count by what they did before. Pods that are drained, or on a node that is
not ready, don't count.

If more pods are unhealthy than --max-unhealthy, the command lists them and stops. It sets a canary to 0%,
unless you use --on-failure=keep. A held version stays: write the old values back, and then run the command
with --to 100%.

A share without a pod is raised to the lowest one that has a pod. At the end of a rollout of held versions,
the annotation gets its old value. A run that was interrupted continues when you run the command again.

The exit status is:
  0  All steps were done.
  1  The command stopped. It also stops if somebody else changes an object.
  2  The answer is not known, or the command line is wrong.
  3  No volume names an object, or there is nothing to do.`,
		Example: `  # Hold the object, change it, and give the change to all pods
  kubectl refvol rollout configmap/app -n shop --to 0%
  kubectl apply -n shop -f app.yaml
  kubectl refvol rollout configmap/app -n shop

  # One pod first, then half of them, then all
  kubectl refvol rollout configmap/app -n shop --steps 1,50%,100% --every 10m

  # After a bad value was reverted
  kubectl refvol rollout configmap/app -n shop --to 100%

  # A canary object, of whose pods one in ten may fail
  kubectl refvol rollout configmap/app-canary -n shop --max-unhealthy 10%`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.given = givenFlags(cmd)
			return opts.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	opts.cluster.addFlags(cmd.Flags())
	opts.cluster.addStatusFlags(cmd.Flags())
	fs := cmd.Flags()
	fs.StringSliceVar(&opts.steps, "steps", opts.steps, "The steps. Each is a share of the pods, or the least number of pods that it reaches.")
	fs.StringVar(&opts.to, "to", opts.to, "The only step. The annotation stays at it. 0% holds all changes.")
	fs.DurationVar(&opts.every, "every", opts.every, "The time for which each step's pods are watched.")
	fs.DurationVar(&opts.timeout, "timeout", opts.timeout, "The time to wait for the volumes of each step. It is at least their longest spread.")
	fs.BoolVar(&opts.opened, "opened", opts.opened, "If true, each step waits until the files have been opened, too.")
	fs.Int32Var(&opts.allowRestarts, "allow-restarts", opts.allowRestarts, "The number of restarts that each pod may have because of the change.")
	fs.Var(&opts.maxUnhealthy, "max-unhealthy", "The number or share of the pods with the change that may be unhealthy.")
	fs.DurationVar(&opts.unreadyFor, "unready-for", opts.unreadyFor, "The time after which a pod that is not ready counts as unhealthy.")
	fs.StringVar(&opts.onFailure, "on-failure", opts.onFailure, "Whether the command sets a canary object to 0% if pods are unhealthy. One of: (revert, keep).")
	fs.StringVar(&opts.check, "check", opts.check, "A command for sh that runs at each look at the pods. If it fails for --unready-for, the change is bad.")
	cmd.MarkFlagsMutuallyExclusive("to", "steps")
	cmd.AddCommand(append(newPauseCommands(flags), newRolloutStatusCommand(flags))...)
	return cmd
}

// rolloutStep is a share of the pods or, if pods is not 0, a number of pods.
type rolloutStep struct{ percent, pods int }

func (s rolloutStep) String() string {
	if s.pods > 0 {
		return strconv.Itoa(s.pods)
	}
	return share(s.percent)
}

// share returns a share in the form of the annotation.
func share(percent int) string { return strconv.Itoa(percent) + "%" }

func parseStep(text string) (rolloutStep, error) {
	if pods, err := strconv.Atoi(text); err == nil && pods > 0 {
		return rolloutStep{pods: pods}, nil
	}
	percent, ok := volume.ParseShare(text)
	if !ok || text == "" {
		return rolloutStep{}, fmt.Errorf("%q is neither a share from 0%% to 100%% nor a number of pods", text)
	}
	return rolloutStep{percent: percent}, nil
}

// parse returns the steps. Shares must increase, and numbers of pods too.
func (o *rolloutOptions) parse() ([]rolloutStep, error) {
	switch {
	case o.every < 0:
		return nil, fmt.Errorf("--every: %s is negative", o.every)
	case o.timeout <= 0:
		return nil, fmt.Errorf("--timeout: %s is not positive", o.timeout)
	case o.allowRestarts < 0:
		return nil, fmt.Errorf("--allow-restarts: %d is negative", o.allowRestarts)
	case o.unreadyFor < 0:
		return nil, fmt.Errorf("--unready-for: %s is negative", o.unreadyFor)
	case o.onFailure != revertCanary && o.onFailure != keepCanary:
		return nil, fmt.Errorf("--on-failure: Unsupported value: %q: must be %s or %s", o.onFailure, revertCanary, keepCanary)
	case o.to != "":
		step, err := parseStep(o.to)
		if err != nil {
			return nil, fmt.Errorf("--to: %w", err)
		}
		return []rolloutStep{step}, nil
	case len(o.steps) == 0:
		return nil, errors.New("--steps must not be empty")
	}
	var steps []rolloutStep
	var last rolloutStep
	for _, text := range o.steps {
		step, err := parseStep(text)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--steps: %w", err)
		case step == rolloutStep{}:
			return nil, errors.New("--steps: 0% gives the change to no pod: use --to 0% to hold it")
		case step.pods > 0 && step.pods <= last.pods, step.pods == 0 && step.percent <= last.percent:
			return nil, fmt.Errorf("--steps: %s must be more than the step before", step)
		}
		last = rolloutStep{max(last.percent, step.percent), max(last.pods, step.pods)}
		steps = append(steps, step)
	}
	return steps, nil
}

func (o *rolloutOptions) run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	steps, err := o.parse()
	if err != nil {
		return err
	}
	c, err := o.cluster.connect()
	if err != nil {
		return err
	}
	objects, err := namedObjects(o.cluster.flags, args)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	pods, err := c.watchPods(ctx)
	if err != nil {
		return err
	}
	say := func(w io.Writer) func(string, ...any) {
		return func(format string, args ...any) {
			_ = status.WriteLines(w, fmt.Sprintf(format, args...)+"\n") // the end counts, not this text
		}
	}
	warn := say(stderr)
	r := &roller{
		rolloutOptions: *o, objects: objects, byHand: o.to != "",
		calls: rolloutCalls{
			state: c.rollout, set: c.setRollout, survey: c.fleet().Collect, pods: pods, event: c.event,
			check: func(ctx context.Context, env []string) error { return runShell(ctx, o.check, env, stderr) },
			say:   say(stdout), warn: func(err error) { warn("Warning: %v: trying again", err) },
		},
	}
	return r.roll(ctx, steps)
}

// names returns the objects in the form of a command line.
func (r *roller) names() string {
	var names []string
	for _, o := range r.objects {
		names = append(names, strings.ToLower(o.Kind)+"/"+o.Name)
	}
	return strings.Join(names, " ")
}

// commandTo returns the command line that sets the objects to a share.
func (r *roller) commandTo(percent int) string {
	words := slices.Concat([]string{"kubectl refvol rollout", r.names(), "-n", r.objects[0].Namespace, "--to", share(percent)}, r.given)
	return strings.Join(words, " ")
}

// quoted returns a word of a command line for a shell.
func quoted(word string) string {
	if strings.ContainsFunc(word, func(c rune) bool {
		return !strings.ContainsRune("-_./:=,@%+", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	}) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// givenFlags returns the flags of a command line that say which cluster and which plugins are meant, so that a printed command means the same.
func givenFlags(cmd *cobra.Command) (given []string) {
	names := []string{
		"kubeconfig", "context", "cluster", "user", "server", "as", "plugin-namespace", "plugin-selector", "driver-name", "status-port",
		"timeout", "opened", "allow-restarts",
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if slices.Contains(names, f.Name) {
			given = append(given, fmt.Sprintf("--%s=%s", f.Name, quoted(f.Value.String())))
		}
	})
	return given
}
