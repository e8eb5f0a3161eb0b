package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// followInterval is how long the files are not read at most.
const followInterval = 50 * time.Millisecond

// followed is a text that a file got, or a read that went wrong.
type followed struct {
	File string `json:"file"`
	Text string `json:"text"`
	// Error is set if the read failed, or gave a smaller text than an earlier one.
	Error string `json:"error,omitempty"`
	// Reads counts the reads of the file up to this one.
	Reads int `json:"reads"`
	// At is the time after the read, by the clock of package clock.
	At time.Duration `json:"at"`
}

// follow reads the files, whose texts only grow in byte order, until ctx ends: when something is
// renamed in a file's directory, as volumes of ConfigMaps change, and each followInterval. It writes
// the clock's name to out, and then what it followed, in JSON.
func follow(ctx context.Context, out io.Writer, files []string) error {
	var watched []expected
	for _, file := range files {
		watched = append(watched, expected{path: file})
	}
	renames, err := watchDirectories(watched)
	if err != nil {
		return err
	}
	defer renames.Close()
	name, err := clock.Name()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, name); err != nil {
		return err
	}
	growths, highest := make([]growth, len(files)), make(map[string]string, len(files))
	events := make([]byte, 4096)
	for ctx.Err() == nil {
		for i, file := range files {
			if err := growths[i].tell(out, file, highest); err != nil {
				return err
			}
		}
		if err := renames.SetReadDeadline(time.Now().Add(followInterval)); err != nil {
			return fmt.Errorf("wait for renames: %w", err)
		}
		if _, err := renames.Read(events); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("wait for renames: %w", err)
		}
	}
	return nil
}

// tell reads the one file of the growth, and writes to out what the read before did not give.
func (g *growth) tell(out io.Writer, file string, highest map[string]string) error {
	wrong, text := g.Failed+g.Back, highest[file]
	g.read([]string{file}, highest, "")
	at, err := clock.Now()
	if err != nil {
		return err
	}
	now := followed{File: file, Text: highest[file], Reads: g.Reads, At: at}
	if g.Failed+g.Back > wrong {
		now.Error = g.Error
	} else if now.Text == text {
		return nil
	}
	return json.NewEncoder(out).Encode(now)
}
