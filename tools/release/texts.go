package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeChanges writes what CHANGELOG.md says of the version: a release has a section of its own,
// and what comes before one has what is not released.
func writeChanges(o *options, dir string) error {
	text, err := os.ReadFile(filepath.Join(o.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	title := "Unreleased"
	if o.final() {
		title = o.version
	}
	section := sectionOf(string(text), title)
	if section == "" {
		return fmt.Errorf("CHANGELOG.md has no section %q: give what is under \"## Unreleased\" this title", "## "+title)
	}
	return write(dir, "CHANGES.md", []byte(section))
}

// sectionOf returns the lines under a title of the second level, which may have a date behind it.
func sectionOf(text, title string) string {
	var section strings.Builder
	in := false
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "## "); ok {
			words := strings.Fields(rest)
			in = len(words) > 0 && words[0] == title
			continue
		}
		if in {
			section.WriteString(line)
		}
	}
	if section.Len() == 0 {
		return ""
	}
	return strings.TrimSpace(section.String()) + "\n"
}

// writeChecksums writes the file that `sha256sum --check` reads.
func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir) // in the order of the names
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return write(dir, "SHA256SUMS", []byte(lines.String()))
}
