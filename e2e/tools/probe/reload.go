package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
)

// reload does what an application does that loads a file now and then: it opens it each period, and uses what it has
// open each followInterval. It writes the clock's name to out, and then each text that differs from the one before, in JSON.
func reload(ctx context.Context, out io.Writer, period, path string) error {
	every, err := time.ParseDuration(period)
	if err != nil {
		return fmt.Errorf("period: %w", err)
	}
	name, err := clock.Name()
	if err == nil {
		_, err = fmt.Fprintln(out, name)
	}
	if err != nil {
		return err
	}
	var last followed
	for ctx.Err() == nil {
		if err := useOpen(ctx, out, path, every, &last); err != nil {
			return err
		}
	}
	return nil
}

// useOpen opens the file, and reads through that for a time.
func useOpen(ctx context.Context, out io.Writer, path string, during time.Duration, last *followed) error {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for ctx.Err() == nil {
		text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
		if err != nil {
			return err
		}
		at, err := clock.Now()
		if err != nil {
			return err
		}
		if last.Reads++; last.Reads == 1 || string(text) != last.Text {
			last.File, last.Text, last.At = path, string(text), at
			if err := json.NewEncoder(out).Encode(last); err != nil {
				return err
			}
		}
		select {
		case <-time.After(followInterval):
		case <-ctx.Done():
		}
	}
	return nil
}
