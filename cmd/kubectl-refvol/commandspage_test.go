package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/internal/helppage"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of each command, and once the flags that all commands have.
func TestCommandsPage(t *testing.T) {
	t.Setenv("HOME", "/home/you") // the default of --cache-dir contains it
	t.Setenv("KUBECACHEDIR", "")
	root := newRootCommand()
	commands := []helppage.Command{{Line: root.CommandPath(), Help: help(t, root)}}
	for _, cmd := range root.Commands() {
		for _, cmd := range append([]*cobra.Command{cmd}, cmd.Commands()...) {
			if cmd.IsAvailableCommand() {
				own, _, _ := strings.Cut(help(t, cmd), "\nGlobal Flags:")
				commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: own})
			}
		}
	}
	commands[0].Line = "kubectl refvol"
	helppage.Check(t, "../../docs/commands.md", "kubectl-refvol", commands, *update)
}

func help(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var b bytes.Buffer
	cmd.SetOut(&b)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
