package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// pollInterval bounds how late a change is noticed. Polling, because the tests
// measure when a reader sees a change, not when it is told of one.
const pollInterval = time.Millisecond

// arrival tells how a text arrived in a file.
type arrival struct {
	// UnixNano is the time of the first read that had the text, by the node's clock.
	UnixNano int64 `json:"unixNano"`
	// Reads counts the reads; Failed counts those of them that gave an error.
	Reads  int `json:"reads"`
	Failed int `json:"failed"`
	// Error is the last read's that failed.
	Error string `json:"error,omitempty"`
	// Others is what the other files held right after that.
	Others map[string]string `json:"others,omitempty"`
}

// await reads the file until it holds text. It writes "ready" to out after the
// first read, so that who makes the change knows when to, and at the end the
// arrival in JSON.
func await(ctx context.Context, out io.Writer, path, text, timeout string, others []string) error {
	limit, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	var result arrival
	for {
		content, err := os.ReadFile(path)
		result.Reads++
		if err != nil {
			result.Failed++
			result.Error = err.Error()
		} else if string(content) == text {
			result.UnixNano = time.Now().UnixNano()
			break
		}
		if result.Reads == 1 {
			if _, err := fmt.Fprintln(out, "ready"); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%d reads in %s, the last: %w", result.Reads, limit, err)
			}
			return fmt.Errorf("%s: %d reads in %s, the last without the text", path, result.Reads, limit)
		}
	}
	result.Others = make(map[string]string, len(others))
	for _, other := range others {
		content, err := os.ReadFile(other)
		if err != nil {
			return err
		}
		result.Others[other] = string(content)
	}
	return answer(out)(result, nil)
}
