package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// growth tells how the texts of files grew.
type growth struct {
	// Reads counts the reads. Failed counts those of them that gave an error, and Back those that
	// gave a smaller text than an earlier read of the same file.
	Reads  int `json:"reads"`
	Failed int `json:"failed"`
	Back   int `json:"back"`
	// Error tells of the last read that failed or gave a smaller text.
	Error string `json:"error,omitempty"`
}

// grow reads the files, whose texts only grow in byte order, until each holds the last one. It
// writes "ready" to out after the first reads, and at the end the growth in JSON.
func grow(ctx context.Context, out io.Writer, timeout, last string, files []string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	var result growth
	highest := make(map[string]string, len(files))
	for {
		missing := result.read(files, highest, last)
		if missing == "" {
			return answer(out)(result, nil)
		}
		if result.Reads == len(files) {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s holds %q after %s, not %q: %+v", missing, highest[missing], limit, last, result)
		}
	}
}

// read reads each file once, keeps its highest text, and returns one that lacks the last text,
// or "".
func (g *growth) read(files []string, highest map[string]string, last string) (missing string) {
	for _, file := range files {
		content, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			// Between the look at ..data and that at the file the generation may have gone, as with the
			// kubelet's own volumes. Opening it again finds the next one.
			content, err = os.ReadFile(file)
		}
		text := string(content)
		g.Reads++
		switch {
		case err != nil:
			g.Failed++
			g.Error = err.Error()
		case text < highest[file]:
			g.Back++
			g.Error = fmt.Sprintf("%s holds %q after %q", file, text, highest[file])
		default:
			highest[file] = text
		}
		if text != last {
			missing = file
		}
	}
	return missing
}
