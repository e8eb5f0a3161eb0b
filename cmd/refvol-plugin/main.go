// Command refvol-plugin is the CSI node plugin of refvol. This package only has flags and wiring. Decisions belong into other packages.
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

	"github.com/refvol/refvol/pkg/status"
)

func main() {
	// Files of this process are private from the start: until its mode is set, a socket has the mode of the umask.
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(exitStatus(err))
}

// run executes one command line and prints its error. It returns when the command has ended, or soon after the end of ctx.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		root.PrintErrln("Error:", err)
	}
	return err
}

// serveError says why the plugin stopped serving. The command line was valid.
type serveError struct{ error }

func (e *serveError) Unwrap() error { return e.error }

// exitStatus returns 1 if the plugin has failed or the requested status is abnormal, and 2 for any other error.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if _, failed := errors.AsType[*serveError](err); failed || errors.Is(err, status.ErrAbnormal) {
		return 1
	}
	return 2
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "refvol-plugin",
		Short: "Shows ConfigMaps and Secrets to pods as files that stay current",
		// The usage helps after a wrong flag, but not after a failure.
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(newServeCommand(), newStatusCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "refvol-plugin %s (%s, %s)\n", v.GitVersion, v.GoVersion, v.Platform)
			return err
		},
	}
}
