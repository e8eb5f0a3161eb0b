// Package command is what refvol-plugin and kubectl refvol share: how a command line is run and what exit status it ends
// with, and the commands `check` and `version`.
//
// It owns the flags of these, and how check reads files. It must not know what is right or wrong in a manifest.
package command

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
)

// The exit statuses.
const (
	// No is that of an answer that is known and is no, such as a volume that is abnormal.
	No = 1
	// Unknown is that of every error without a status of its own: there is no answer.
	Unknown = 2
	// None is that of an answer about nothing, which a wrong name is the usual cause of.
	None = 3
)

type statusError struct {
	error
	status int
}

func (e *statusError) Unwrap() error { return e.error }

// WithStatus has the program end with a status if err is not nil.
func WithStatus(status int, err error) error {
	if err == nil {
		return nil
	}
	return &statusError{err, status}
}

// ExitStatus returns the status that a program ends with after an error, or nil.
func ExitStatus(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*statusError](err); ok {
		return e.status
	}
	return Unknown
}

// Main runs the command line of the process until it has ended, or a signal ends it, prints its error, and returns the
// exit status.
func Main(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	err := Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	return ExitStatus(err)
}

// Run executes one command line of root, to which it adds `check` and `version`. It returns when the command has ended, or
// soon after the end of ctx.
func Run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) error {
	// Usage helps who got a flag wrong, not who reads why a command failed.
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(newCheckCommand(root.Name()), newVersionCommand(root.Name()))
	return root.ExecuteContext(ctx)
}

func newVersionCommand(program string) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s (%s, %s)\n", program, v.GitVersion, v.GoVersion, v.Platform)
			return err
		},
	}
}
