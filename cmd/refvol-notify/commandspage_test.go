package main

import (
	"bytes"
	"flag"
	"io"
	"testing"

	"github.com/refvol/refvol/internal/helppage"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of both commands.
func TestCommandsPage(t *testing.T) {
	var commands []helppage.Command
	for _, args := range [][]string{{"--help"}, {"wait", "--help"}} {
		var b bytes.Buffer
		if status := run(t.Context(), args, &b, io.Discard); status != 0 {
			t.Fatalf("%q ends with %d", args, status)
		}
		line := "refvol-notify"
		if len(args) > 1 {
			line += " " + args[0]
		}
		commands = append(commands, helppage.Command{Line: line, Help: b.String()})
	}
	helppage.Check(t, "../../docs/commands.md", "refvol-notify", commands, *update)
}
