// Package doclines finds the blocks and the commands that the documents show, so that tests can parse each of them. It knows no program.
package doclines

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Part is a fenced block of a document, or the prose between two blocks.
type Part struct {
	IsBlock bool
	// Language is what follows the fence of a block, such as sh. Text has no fences, and a block of a list not the list's indentation.
	Language, Text string
	// Line is the number of the first line, from 1. That of a block is its fence.
	Line int
}

// Line is a command of a document. Args begins with the program. IsSpan means that it stands in a sentence, where it may lack arguments.
type Line struct {
	Document string
	Args     []string
	IsSpan   bool
}

// String returns the line for a message of a test.
func (l *Line) String() string { return l.Document + ": " + strings.Join(l.Args, " ") }

var (
	fence    = regexp.MustCompile("^( *)```(.*)$")
	isUsage  = regexp.MustCompile(`\[(?:flags|command|-)|\.\.\.`)
	span     = regexp.MustCompile("`([^`]+)`")
	inside   = regexp.MustCompile(`\$\(([^)]*)\)`)
	word     = regexp.MustCompile(`(?:'[^']*'|"[^"]*"|\$\([^)]*\)|[^\s'"|;&])+|[|;&]`)
	variable = regexp.MustCompile(`^[A-Z][A-Z0-9_]*=`)
)

// Says fails the test unless a document has each of the texts, wherever its lines break.
func Says(t testing.TB, document string, texts ...string) {
	t.Helper()
	all, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if text == "" || !strings.Contains(strings.Join(strings.Fields(string(all)), " "), text) {
			t.Errorf("%s doesn't say %q", document, text)
		}
	}
}

// Parts returns the parts of a document in their order.
func Parts(document string) []Part {
	parts, indent := []Part{{Line: 1}}, ""
	for i, line := range strings.Split(document, "\n") {
		last := &parts[len(parts)-1]
		switch m := fence.FindStringSubmatch(line); {
		case m == nil:
			last.Text += strings.TrimPrefix(line, indent) + "\n"
		case last.IsBlock:
			parts, indent = append(parts, Part{Line: i + 2}), ""
		default:
			parts, indent = append(parts, Part{IsBlock: true, Language: m[2], Line: i + 1}), m[1]
		}
	}
	return parts
}

// Blocks returns the texts of a document's blocks in a language.
func Blocks(document, language string) (texts []string) {
	for _, part := range Parts(document) {
		if part.IsBlock && part.Language == language {
			texts = append(texts, part.Text)
		}
	}
	return texts
}

// Commands returns the commands of a block of sh, without comments. A command that ends with \ or | goes on in the next line.
func Commands(block string) (commands []string) {
	isOpen := false
	for line := range strings.Lines(block) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if isOpen {
			commands[len(commands)-1] += line
		} else {
			commands = append(commands, line)
		}
		if isOpen = strings.HasSuffix(line, "\\") || strings.HasSuffix(line, "|"); isOpen {
			last := &commands[len(commands)-1]
			*last = strings.TrimSpace(strings.TrimSuffix(*last, "\\")) + " "
		}
	}
	return commands
}

// Find returns the commands of a program in the README, the pages of docs/ and those beside suites, at least as many as the caller knows of. A
// block of text may be a help with examples.
func Find(t *testing.T, root, program string, least int) (lines []Line) {
	t.Helper()
	files := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "e2e/suites/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, pages...)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range Parts(string(content)) {
			var commands []string
			switch {
			case !part.IsBlock:
				for _, m := range span.FindAllStringSubmatch(part.Text, -1) {
					commands = append(commands, strings.Join(strings.Fields(m[1]), " "))
				}
			case part.Language == "sh" || part.Language == "text":
				commands = Commands(part.Text)
			}
			for _, command := range commands {
				if isUsage.MatchString(command) {
					continue
				}
				for _, args := range Split(command) {
					if args[0] == program && len(args) > 1 {
						lines = append(lines, Line{filepath.Base(file), args, !part.IsBlock})
					}
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
