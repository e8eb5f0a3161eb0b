package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The files of --env. Both are made from the references of this container's variables. The receipt of applied shows with which variables
// the containers have started, so applied is opened only after that.
const (
	wantFile    = "want"
	appliedFile = "applied"
)

// environment compares this process's variables with the file want. Containers that start after this process have the same variables, or
// newer ones.
type environment struct {
	dir string
	// prefix begins the names of the variables that objects give, and of no others: the image and Kubernetes give some, too.
	prefix string
	// variables are those of this process with such names.
	variables map[string]string
	opened    string // the identity of the last applied file that was opened
}

func newEnvironment(dir, prefix string, environ []string) *environment {
	e := &environment{dir: dir, prefix: prefix, variables: map[string]string{}}
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, prefix) {
			e.variables[name] = value
		}
	}
	return e
}

// comparison is what differs between the variables of this process and the file want.
type comparison struct {
	// differing are the names that have another value in want, or are only here or only there. all are the names here and there. Both are
	// sorted.
	differing, all []string
	// The identity of want.
	is string
}

// compare compares the variables with want.
func (e *environment) compare() (*comparison, error) {
	want, is, err := e.readWant()
	if err != nil {
		return nil, err
	}
	c := &comparison{is: is}
	both := maps.Clone(e.variables)
	maps.Copy(both, want)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		c.all = append(c.all, name)
		here, isHere := e.variables[name]
		if there, isThere := want[name]; isHere != isThere || here != there {
			c.differing = append(c.differing, name)
		}
	}
	return c, nil
}

// readWant returns the variables in the file want, and its identity.
func (e *environment) readWant() (want map[string]string, is string, err error) {
	file, err := os.Open(filepath.Join(e.dir, wantFile))
	if err != nil {
		return nil, "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, "", err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, "", err
	}
	if len(text) > 0 && text[len(text)-1] != 0 {
		return nil, "", fmt.Errorf("%s does not end with a NUL byte: set format: environ", file.Name())
	}
	want = map[string]string{}
	for entry := range strings.FieldsFuncSeq(string(text), func(r rune) bool { return r == 0 }) {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || name == "" {
			return nil, "", fmt.Errorf("%s: entry %d is not of the form NAME=value", file.Name(), len(want)+1)
		}
		if !strings.HasPrefix(name, e.prefix) {
			return nil, "", fmt.Errorf("%s: %s does not begin with --env-prefix=%s: give all variables of this container such names", file.Name(), name, e.prefix)
		}
		want[name] = value
	}
	return want, identity(info), nil
}

// openApplied opens the file applied in the generation whose file want has this identity. In another generation, other variables would get
// the receipt.
func (e *environment) openApplied(want string) error {
	root, err := generationOf(e.dir)
	if err != nil {
		return err
	}
	beside, err := os.Lstat(filepath.Join(root, wantFile))
	if err != nil {
		return err
	}
	info, err := os.Lstat(filepath.Join(root, appliedFile))
	if err != nil || identity(beside) != want || identity(info) == e.opened {
		return err
	}
	file, err := os.Open(filepath.Join(root, appliedFile))
	if err != nil {
		return err
	}
	e.opened = identity(info)
	return file.Close()
}

// mark distinguishes old variables from newer ones after a restart. One byte of a hash with a random key is wrong in one of 256 cases, and
// too short to guess a value from.
type mark struct {
	Names []string `json:"names"`
	Key   []byte   `json:"key"`
	Sum   byte     `json:"sum"`
}

func (e *environment) mark(names []string) *mark {
	m := &mark{Names: names, Key: make([]byte, 16)}
	_, _ = rand.Read(m.Key) // never fails
	m.Sum = e.sum(m)
	return m
}

// hasMarked reports whether the variables are the marked ones.
func (e *environment) hasMarked(m *mark) bool { return m != nil && e.sum(m) == m.Sum }

func (e *environment) sum(m *mark) byte {
	hash := hmac.New(sha256.New, m.Key)
	for _, name := range m.Names {
		value, ok := e.variables[name]
		_, _ = fmt.Fprintf(hash, "%s=%q %t\n", name, value, ok)
	}
	return hash.Sum(nil)[0]
}
