package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/helppage"
)

// TestCommandsPage: docs/commands.md shows the help of each command, except the flags of serve, which have their own page.
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
		text := b.String()
		if cmd.Name() == "serve" {
			text, _, _ = strings.Cut(text, "\nFlags:")
		}
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: text})
	}
	last := len(commands) - 1
	commands = append(commands[last:], commands[:last]...)
	helppage.Check(t, "../../docs/commands.md", "refvol-plugin", commands, *update)
}
