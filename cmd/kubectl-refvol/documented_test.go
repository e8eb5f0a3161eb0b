package main

import (
	"testing"

	"github.com/refvol/refvol/internal/doclines"
)

// TestDocumentedCommands parses each kubectl refvol of the documents as the program does. A command in a sentence may lack arguments.
func TestDocumentedCommands(t *testing.T) {
	for _, line := range doclines.Find(t, "../..", "kubectl", 100) {
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
