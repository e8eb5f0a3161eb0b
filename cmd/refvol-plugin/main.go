// Command refvol-plugin is the CSI node plugin of refvol. This package holds flags
// and wiring only; nothing is decided here that another package could decide.
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
	// Files of this process are private from the start: a socket has the mode of the umask
	// until its mode is set.
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	os.Exit(exitStatus(err))
}

// run executes one command line. It returns when the command has ended, or soon after the end of ctx.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// serveError is why the plugin doesn't serve any more. Its command line was right.
type serveError struct{ error }

func (e *serveError) Unwrap() error { return e.error }

// exitStatus returns 1 if the plugin has failed, or what was asked for is abnormal, and 2 if there is no answer.
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
		// Usage helps who got a flag wrong, not who reads why a command failed.
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
