// Command kubectl-refvol asks all plugins of a cluster, as a plugin of kubectl: kubectl refvol.
//
// It is a module of its own: what a port-forward takes must not get into the node's binary.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/checkcmd"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(exitStatus(err))
	}
}

// noError is that the answer is known, and is no: a volume lags or is abnormal, or that of a node isn't known.
type noError struct{ error }

// noneError is that no volume names the object, which a wrong name or namespace is the usual cause of.
type noneError struct{ error }

// exitStatus returns 1 for no, 2 if there is no answer, and 3 for an answer about nothing.
func exitStatus(err error) int {
	if _, ok := errors.AsType[noError](err); ok {
		return 1
	}
	if _, ok := errors.AsType[noneError](err); ok {
		return 3
	}
	return 2
}

// run executes one command line. It returns when the command has ended, or soon after the end
// of ctx.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:         "kubectl-refvol",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl refvol"},
		Short:       "Tells which refvol volumes show what, on all nodes",
		// Usage helps who got a flag wrong, not who reads why a command failed.
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(newStatusCommand(), newConvergedCommand(), newCheckCommand(), newVersionCommand())
	return root.ExecuteContext(ctx)
}

// newCheckCommand returns the command `check`.
func newCheckCommand() *cobra.Command {
	cmd := checkcmd.New("kubectl-refvol")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if errors.As(err, new(checkcmd.ProblemsError)) {
			return noError{err}
		}
		return err
	}
	return cmd
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the command's version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubectl-refvol %s (%s, %s)\n", v.GitVersion, v.GoVersion, v.Platform)
			return err
		},
	}
}
