// Command kubectl-refvol queries all plugins of a cluster, rolls changes out, and checks manifests. It is a plugin of kubectl: kubectl
// refvol.
//
// It is a separate module, so that the dependencies of kubectl's libraries and of the port-forward don't get into the node's binary.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // the ways to log in that kubectl knows
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)                 // a second signal ends the program, whatever it does
	klog.OsExit = func(int) { os.Exit(unknown) } // kubectl's --sort-by ends the program if the field has no order
	err := run(ctx, newRootCommand(), os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	os.Exit(exitStatus(err))
}

// run executes one command line. It returns when the command has ended, or soon after the end of ctx.
func run(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) error {
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
}

// maxVerbosity is the highest level at which client-go logs no bodies of answers, which may have values of Secrets.
const maxVerbosity = 7

func newRootCommand() *cobra.Command {
	flags, timeout := newConfigFlags()
	verbosity := 0
	root := &cobra.Command{
		Use:         "kubectl-refvol",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl refvol"},
		Short:       "Shows the state of refvol volumes on all nodes, rolls out changes, and checks manifests",
		Example: `  # Which volumes need attention?
  kubectl refvol status

  # Wait until all volumes show the current version of a Secret
  kubectl refvol converged secret/db -n shop

  # Give a change of a ConfigMap to one pod or a few first, then to half of them, then to all
  kubectl refvol rollout configmap/app -n shop --steps 1,50%,100%

  # Is a manifest right, and which objects does it reference?
  kubectl refvol check -f app.yaml`,
		// The usage helps after a wrong flag, but not after a failure.
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error { return logRequests(verbosity) },
	}
	flags.AddFlags(root.PersistentFlags())
	root.PersistentFlags().Var(timeout, "request-timeout", "The time that one request to the API server may take, such as 5s. Zero means no limit.")
	root.PersistentFlags().IntVarP(&verbosity, "v", "v", verbosity, "The number for the log level verbosity. 6 logs requests, and 7 also logs their headers.")
	root.AddCommand(newStatusCommand(flags), newConvergedCommand(flags), newRolloutCommand(flags), newCheckCommand(flags), newUninstallCheckCommand(flags), newVersionCommand())
	complete(root, flags)
	return root
}

// logRequests makes client-go log to standard error.
func logRequests(verbosity int) error {
	if verbosity > maxVerbosity {
		return fmt.Errorf("-v: %d would log values of Secrets: must be at most %d", verbosity, maxVerbosity)
	}
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(fs)
	return fs.Set("v", fmt.Sprint(verbosity))
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  kubectl refvol version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := version.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubectl-refvol %s (%s, %s)\n", v.GitVersion, v.GoVersion, v.Platform)
			return err
		},
	}
}
