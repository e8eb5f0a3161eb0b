package main

import (
	"testing"

	"github.com/refvol/refvol/internal/doclines"
)

// TestDocumentedCommands parses each kubectl refvol of the documents and of the helps' examples as the program does. A command in a sentence
// may lack arguments.
func TestDocumentedCommands(t *testing.T) {
	lines := doclines.Find(t, "../..", "kubectl", 100)
	root := newRootCommand()
	commands := append(root.Commands(), root)
	for _, cmd := range root.Commands() {
		commands = append(commands, cmd.Commands()...)
	}
	for _, cmd := range commands {
		for _, command := range doclines.Commands(cmd.Example) {
			for _, words := range doclines.Split(command) {
				if words[0] == "kubectl" {
					lines = append(lines, doclines.Line{Document: cmd.CommandPath() + " --help", Args: words})
				}
			}
		}
	}
	for _, line := range lines {
		if line.Args[1] != "refvol" {
			continue
		}
		cmd, rest, err := newRootCommand().Find(line.Args[2:])
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil && !line.IsSpan {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil {
			t.Errorf("%s: %v", &line, err)
		}
	}
}
