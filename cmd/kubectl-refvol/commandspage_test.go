package main

import (
	"bytes"
	"flag"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/kubectl/pkg/cmd/get"

	"github.com/refvol/refvol/internal/helppage"
)

var update = flag.Bool("update", false, "write this program's part of docs/commands.md anew")

// TestCommandsPage: docs/commands.md shows the help of each command but version. It leaves kubectl's own flags to kubectl, and has flags of several
// commands once.
func TestCommandsPage(t *testing.T) {
	root := newRootCommand()
	var all []*cobra.Command
	for _, cmd := range root.Commands() {
		for _, cmd := range append([]*cobra.Command{cmd}, cmd.Commands()...) {
			if cmd.IsAvailableCommand() && cmd.Name() != "version" {
				all = append(all, cmd)
			}
		}
	}
	hideKubectlFlags(append(all, root))
	shared := sharedFlags(all)
	for _, cmd := range append(all, root) {
		cmd.Example = "" // other documents have examples
	}
	commands := []helppage.Command{{Line: "kubectl refvol", Help: help(t, root)}, {Line: "Flags of several commands", Help: "Flags:\n" + shared.FlagUsages()}}
	for _, cmd := range all {
		var names []string
		shared.VisitAll(func(f *pflag.Flag) {
			if own := cmd.LocalNonPersistentFlags().Lookup(f.Name); own != nil {
				own.Hidden = true
				names = append(names, "--"+f.Name)
			}
		})
		text := help(t, cmd)
		if len(names) > 0 {
			text = strings.TrimSpace(text) + "\n\nFlags of several commands:\n  " + strings.Join(names, " ")
		}
		commands = append(commands, helppage.Command{Line: cmd.CommandPath(), Help: text})
	}
	helppage.Check(t, "../../docs/commands.md", "kubectl-refvol", commands, *update)
}

// hideKubectlFlags removes kubectl's flags for the connection and for output formats from the helps.
func hideKubectlFlags(commands []*cobra.Command) {
	theirs := &cobra.Command{}
	genericclioptions.NewConfigFlags(true).AddFlags(theirs.Flags())
	format := get.NewGetPrintFlags()
	format.JSONYamlPrintFlags.AddFlags(theirs)
	format.TemplateFlags.AddFlags(theirs)
	for _, cmd := range commands {
		hide := func(f *pflag.Flag) {
			if of := theirs.Flags().Lookup(f.Name); of != nil && of.Usage == f.Usage {
				f.Hidden = true
			}
		}
		cmd.Flags().VisitAll(hide)
		cmd.PersistentFlags().VisitAll(hide)
	}
}

// sharedFlags returns the flags that at least three commands have, with the same text wherever the name is a command's.
func sharedFlags(commands []*cobra.Command) *pflag.FlagSet {
	usages, counts := map[string]string{}, map[string]int{}
	shared := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, cmd := range commands {
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if usage, is := usages[f.Name]; is && usage != f.Usage {
				counts[f.Name] = -len(commands)
			}
			usages[f.Name] = f.Usage
			if counts[f.Name]++; counts[f.Name] == 3 && !f.Hidden && f.Name != "help" {
				shared.AddFlag(f)
			}
		})
	}
	kept := pflag.NewFlagSet("", pflag.ContinueOnError)
	shared.VisitAll(func(f *pflag.Flag) {
		if counts[f.Name] > 0 {
			copied := *f
			kept.AddFlag(&copied)
		}
	})
	return kept
}

// help returns what --help prints, without the flags of all commands and the hint at the help of others.
func help(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var b bytes.Buffer
	cmd.SetOut(&b)
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(b.String(), "\nGlobal Flags:")
	text, _, _ = strings.Cut(text, "\nUse \"kubectl refvol")
	return text
}
