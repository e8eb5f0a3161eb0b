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
	var watches []*events.Watch
	defer func() {
		for _, w := range watches {
			err = errors.Join(err, w.Close())
		}
	}()
	for _, dir := range dirs {
		w, err := events.New(dir, paths...)
		if err != nil {
			return err
		}
		watches = append(watches, w)
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
