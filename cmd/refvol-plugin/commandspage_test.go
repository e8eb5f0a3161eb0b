package main

import (
	"bytes"
	"flag"
	"testing"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/refvol/refvol/internal/helppage"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of serve and status, without the flags for logs.
func TestCommandsPage(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	logs := pflag.NewFlagSet("", pflag.ContinueOnError)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), logs)
	var commands []helppage.Command
	for _, cmd := range newRootCommand().Commands() {
		if cmd.Name() == "version" {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Hidden = f.Hidden || logs.Lookup(f.Name) != nil })
		var b bytes.Buffer
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: b.String()})
	}
	helppage.Check(t, "../../docs/commands.md", "refvol-plugin", commands, *update)
}
