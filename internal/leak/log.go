package leak

import (
	"bytes"
	"slices"
	"strings"
	"sync"
)

// Log collects what a test has written. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds p to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Sync does nothing. The JSON logger requires the method.
func (l *Log) Sync() error { return nil }

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// With returns the lines that contain all parts.
func (l *Log) With(parts ...string) []string {
	return slices.DeleteFunc(slices.Collect(strings.Lines(l.String())), func(line string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
	})
}
