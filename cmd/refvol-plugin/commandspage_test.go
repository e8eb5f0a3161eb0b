package main

import (
	"bytes"
	"flag"
	"testing"

	"github.com/refvol/refvol/internal/helppage"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of each command.
func TestCommandsPage(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	root := newRootCommand()
	var commands []helppage.Command
	for _, cmd := range append(root.Commands(), root) {
		var b bytes.Buffer
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: b.String()})
	}
	last := len(commands) - 1
	commands = append(commands[last:], commands[:last]...)
	helppage.Check(t, "../../docs/commands.md", "refvol-plugin", commands, *update)
}
