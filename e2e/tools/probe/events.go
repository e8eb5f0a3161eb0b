package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/refvol/refvol/e2e/tools/probe/events"
)

// pollInterval is how often followEvents looks for events.
const pollInterval = time.Millisecond

// followEvents writes "ready" to out, and then each event of the paths in a directory, a line each, until ctx ends.
func followEvents(ctx context.Context, out io.Writer, paths []string, dir string) (err error) {
	w, err := events.New(dir, paths...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for next := []string{"ready"}; ; {
		for _, event := range next {
			if _, err := fmt.Fprintln(out, event); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if next, err = w.Next(); err != nil {
			return err
		}
	}
}
