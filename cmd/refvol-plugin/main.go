// Command refvol-plugin is the CSI node plugin of refvol. This package holds flags
// and wiring only; nothing is decided here that another package could decide.
package main

import (
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/command"
)

func main() {
	// Files of this process are private from the start: a socket has the mode of the umask
	// until its mode is set.
	syscall.Umask(0o077)
	os.Exit(command.Main(newRootCommand()))
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "refvol-plugin",
		Short: "Shows ConfigMaps and Secrets to pods as files that stay current",
	}
	root.AddCommand(newServeCommand(), newStatusCommand(), newUninstallCheckCommand())
	return root
}
