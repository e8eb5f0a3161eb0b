package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

const flagsPage = "../../docs/flags.md"

var update = flag.Bool("update", false, "write docs/flags.md anew")

// TestFlagsPage: docs/flags.md ends with the flags of serve, without the log flags that all Kubernetes components have.
func TestFlagsPage(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	const begin = "<!-- made by make flags-table: begin -->\n"
	text, err := os.ReadFile(flagsPage)
	if err != nil {
		t.Fatal(err)
	}
	before, got, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatal("the page has no place for the flags")
	}
	want := flagsList()
	if *update {
		if err := os.WriteFile(flagsPage, []byte(before+begin+want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("docs/flags.md is out of date: run make flags-table")
	}
}

// flagsList returns the flags as Markdown.
func flagsList() string {
	cmd, ofLogs := &cobra.Command{}, pflag.NewFlagSet("", pflag.ContinueOnError)
	newServeOptions().addFlags(cmd)
	logsapi.AddFlags(logsapi.NewLoggingConfiguration(), ofLogs)
	var b strings.Builder
	b.WriteByte('\n')
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if ofLogs.Lookup(f.Name) != nil {
			return
		}
		preset := ""
		if f.DefValue != "" {
			preset = " (`" + f.DefValue + "`)"
		}
		fmt.Fprintf(&b, "- `--%s`%s: %s\n", f.Name, preset, f.Usage)
	})
	return b.String()
}
