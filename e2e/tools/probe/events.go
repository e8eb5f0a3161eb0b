package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/refvol/refvol/e2e/tools/probe/events"
)

// followEvents writes "ready" to out, and then each event of the paths in each directory, a line each with the directory's name
// before it, until ctx ends.
func followEvents(ctx context.Context, out io.Writer, paths, dirs []string) (err error) {
	watches := make([]*events.Watch, len(dirs))
	for i, dir := range dirs {
		if watches[i], err = events.New(dir, paths...); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, watches[i].Close()) }()
	}
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		for i, w := range watches {
			next, err := w.Next()
			if err != nil {
				return err
			}
			for _, event := range next {
				if _, err := fmt.Fprintf(out, "%s: %s\n", path.Base(dirs[i]), event); err != nil {
					return err
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
