// Package doclines finds the commands that the documents show, so that tests can parse each of them. It knows no program.
package doclines

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Line is a command of a document. Args begins with the program. IsSpan means that it stands in a sentence, where it may lack arguments.
type Line struct {
	Document string
	Args     []string
	IsSpan   bool
}

// String returns the line for a message of a test.
func (l *Line) String() string { return l.Document + ": " + strings.Join(l.Args, " ") }

var (
	data     = regexp.MustCompile("(?s)<!--.*?-->|```(?:yaml|json|go|java|python)\n.*?```")
	fenced   = regexp.MustCompile("(?s)```[a-z]*\n(.*?)```")
	isUsage  = regexp.MustCompile(`\[(?:flags|command|-)|\.\.\.`)
	shown    = regexp.MustCompile("(?m)^ {4,}(?:\\$ )?(.*)$|`([^`]+)`")
	inside   = regexp.MustCompile(`\$\(([^)]*)\)`)
	word     = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|\$\([^)]*\)|[^\s'"|;&])+|[|;&]`)
	variable = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)
)

// Find returns the commands of a program in the README and the pages of docs/, at least as many as the caller knows of.
func Find(t *testing.T, root, program string, least int) (lines []Line) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, filepath.Join(root, "README.md")) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := fenced.ReplaceAllStringFunc(data.ReplaceAllString(string(content), ""), func(block string) string {
			return strings.ReplaceAll(strings.Trim(block, "`"), "\n", "\n    ")
		})
		for _, m := range shown.FindAllStringSubmatch(regexp.MustCompile(`\\\n *`).ReplaceAllString(text, ""), -1) {
			if isUsage.MatchString(m[0]) {
				continue
			}
			for _, args := range Split(m[1] + strings.Join(strings.Fields(m[2]), " ")) {
				if args[0] == program && len(args) > 1 {
					lines = append(lines, Line{filepath.Base(file), args, m[2] != ""})
				}
			}
		}
	}
	if len(lines) < least {
		t.Fatalf("the documents have %d commands of %s", len(lines), program)
	}
	return lines
}

// Split returns the words of each command of a shell's line, without variables before a command. A command in $(...) comes on its own, too.
func Split(line string) (commands [][]string) {
	line, _, _ = strings.Cut(line, " # ")
	for _, m := range inside.FindAllStringSubmatch(line, -1) {
		commands = append(commands, Split(m[1])...)
	}
	var args []string
	for _, w := range append(word.FindAllString(line, -1), ";") {
		switch {
		case w == "|" || w == "&" || w == ";":
			if len(args) > 0 {
				commands = append(commands, args)
			}
			args = nil
		case len(args) == 0 && variable.MatchString(w):
		case strings.Contains(w, "'"):
			args = append(args, strings.ReplaceAll(w, "'", ""))
		default:
			args = append(args, strings.ReplaceAll(w, `"`, ""))
		}
	}
	return commands
}
