// Package helppage keeps docs/commands.md equal to the programs' help. Only tests use it.
package helppage

import (
	"os"
	"strings"
	"testing"
)

// Command is one command line and its output with --help.
type Command struct {
	Line, Help string
}

// Check fails the test unless the part of the page between the program's two markers has these commands. If update is true, it writes them.
func Check(t *testing.T, page, program string, commands []Command, update bool) {
	t.Helper()
	begin := "<!-- made by make commands-page: " + program + " begin -->\n"
	end := "<!-- made by make commands-page: " + program + " end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, hasBegin := strings.Cut(string(text), begin)
	got, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		t.Fatalf("%s has no place for %s", page, program)
	}
	want := markdown(commands)
	if update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s is out of date for %s: run make commands-page", page, program)
	}
}

func markdown(commands []Command) string {
	var b strings.Builder
	for _, c := range commands {
		b.WriteString("\n### " + c.Line + "\n\n```text\n" + strings.TrimSpace(c.Help) + "\n```\n")
	}
	b.WriteByte('\n')
	return b.String()
}
