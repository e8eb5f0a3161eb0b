package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// progress is a line that changes in place. It writes nothing to what is no terminal. It is for one
// goroutine at a time.
type progress struct {
	w        io.Writer
	terminal bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	return &progress{w, ok && term.IsTerminal(int(f.Fd()))}
}

// show replaces the line. It must not be longer than a terminal is wide.
func (p *progress) show(format string, args ...any) {
	if p.terminal {
		fmt.Fprintf(p.w, "\r\x1b[K"+format, args...) //nolint:errcheck // A progress that nobody sees does no harm.
	}
}

// clear removes the line.
func (p *progress) clear() { p.show("") }
