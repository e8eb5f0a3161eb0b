package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// change is one break of the code.
type change struct {
	// Name says what is broken. It is unique in its table.
	Name string `yaml:"name"`
	// File is the file, relative to the checkout.
	File string `yaml:"file"`
	// Package is the one whose tests must fail, as ./pkg/writer; empty: that of the file.
	Package string `yaml:"package"`
	// Old occurs exactly once in the file. New takes its place. One newline at their ends is left out.
	Old string `yaml:"old"`
	New string `yaml:"new"`
}

// readTables reads all tables of a directory.
func readTables(dir string) ([]change, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	var all []change
	for _, file := range files {
		table, err := readTable(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, table...)
	}
	return all, nil
}

// blockText begins a text whose lines are indented by four spaces. The library refuses it where the first
// line goes on with a tab, which YAML allows, unless the indentation is given: two more than the key's.
var blockText = regexp.MustCompile(`(?m)^  (?:old|new): \|$`)

func readTable(file string) ([]change, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(blockText.ReplaceAll(text, []byte("${0}2"))))
	decoder.KnownFields(true)
	var table []change
	if err := decoder.Decode(&table); err != nil && !errors.Is(err, io.EOF) { // an empty table is one
		return nil, err
	}
	names := make(map[string]bool)
	for i := range table {
		c := &table[i]
		c.complete()
		if err := c.validate(); err != nil {
			return nil, fmt.Errorf("%d (%s): %w", i, c.Name, err)
		}
		if names[c.Name] {
			return nil, fmt.Errorf("%d (%s): the name is there twice", i, c.Name)
		}
		names[c.Name] = true
	}
	return table, nil
}

func (c *change) complete() {
	c.Old, c.New = strings.TrimSuffix(c.Old, "\n"), strings.TrimSuffix(c.New, "\n")
	if c.Package == "" {
		c.Package = "./" + path.Dir(c.File)
	}
}

func (c *change) validate() error {
	switch {
	case c.Name == "" || c.File == "" || c.Old == "":
		return errors.New("name, file and old are required")
	case !filepath.IsLocal(c.File):
		return fmt.Errorf("file: %q leads out of the checkout", c.File)
	case !strings.HasPrefix(c.Package, "./"):
		return fmt.Errorf("package: %q must begin with ./", c.Package)
	case c.Old == c.New:
		return errors.New("old and new are equal")
	}
	return nil
}

// apply returns the broken text of the file.
func (c *change) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, c.File))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), c.Old); n != 1 {
		return "", fmt.Errorf("the old text is in %s %d times, want once", c.File, n)
	}
	return strings.Replace(string(text), c.Old, c.New, 1), nil
}

// choose returns the breaks of a package, "" for all, whose names match.
func choose(all []change, pkg string, names *regexp.Regexp) []change {
	var chosen []change
	for _, c := range all {
		if (pkg == "" || path.Base(c.Package) == pkg) && names.MatchString(c.Name) {
			chosen = append(chosen, c)
		}
	}
	return chosen
}
