// Command kubectl-refvol asks all plugins of a cluster, as a plugin of kubectl: kubectl refvol.
//
// It is a module of its own: what a port-forward takes must not get into the node's binary.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/command"
)

func main() { os.Exit(command.Main(newRootCommand())) }

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-refvol",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl refvol"},
		Short:       "Tells which refvol volumes show what, on all nodes",
	}
	root.AddCommand(newStatusCommand(), newConvergedCommand())
	return root
}
