// Package leaklog provides a logger for tests. It logs at the highest verbosity and checks that the
// log contains no value and no token, and that no line has a key twice.
//
// It writes every line as text and as JSON, which are the plugin's two formats, and searches both
// when the test ends.
package leaklog

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"io"

	"k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/leak"
)

// verbosity is higher than the level of any line: client-go logs bodies at up to level 10, and the
// plugin adds 4 to the levels of client-go.
const verbosity = 20

// TB has the methods of *testing.T that New uses.
type TB interface {
	Helper()
	Cleanup(f func())
	Errorf(format string, args ...any)
}

// New returns a logger that also writes each line as text to text. When t ends, it fails if a line
// contains a value or a token, or has a key twice. Everything that logs must have ended by then. The
// logger is safe for concurrent use if text is.
func New(t TB, text io.Writer) klog.Logger {
	t.Helper()
	asText, asJSON := &leak.Log{}, &leak.Log{}
	t.Cleanup(func() {
		t.Helper()
		for name, log := range map[string]*leak.Log{"the log": asText, "the log in JSON": asJSON} {
			if err := leak.Check(name, log.String()); err != nil {
				t.Errorf("%v", err)
			}
		}
		for line := range bytes.Lines([]byte(asJSON.String())) {
			if err := CheckKeys(line); err != nil {
				t.Errorf("%v", err)
			}
		}
	})
	textLogger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.MultiWriter(asText, text)), textlogger.Verbosity(verbosity)))
	jsonLogger, _ := json.NewJSONLogger(verbosity, asJSON, nil, nil)
	return klog.New(both{textLogger.GetSink(), jsonLogger.GetSink()})
}

// CheckKeys returns an error if line, one JSON object of a log, has a top-level key twice or is not valid JSON.
func CheckKeys(line []byte) error {
	decoder := stdjson.NewDecoder(bytes.NewReader(line))
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("log line %s: %w", line, err)
	}
	seen := map[stdjson.Token]bool{}
	for decoder.More() {
		key, err := decoder.Token()
		if err == nil {
			err = decoder.Decode(new(stdjson.RawMessage))
		}
		if err != nil {
			return fmt.Errorf("log line %s: %w", line, err)
		}
		if seen[key] {
			return fmt.Errorf("log line %s: the key %q appears twice", line, key)
		}
		seen[key] = true
	}
	return nil
}

// both is a LogSink that passes everything to two other sinks.
type both [2]klog.LogSink

func (b both) each(of func(klog.LogSink) klog.LogSink) klog.LogSink { return both{of(b[0]), of(b[1])} }

// Init does nothing: the loggers that own the two sinks have initialized them.
func (b both) Init(klog.RuntimeInfo) {}

// Enabled reports whether one of the sinks accepts a line of this level.
func (b both) Enabled(level int) bool { return b[0].Enabled(level) || b[1].Enabled(level) }

// Info passes a line to both sinks.
func (b both) Info(level int, msg string, keysAndValues ...any) {
	for _, sink := range b {
		sink.Info(level, msg, keysAndValues...)
	}
}

// Error passes a line about an error to both sinks.
func (b both) Error(err error, msg string, keysAndValues ...any) {
	for _, sink := range b {
		sink.Error(err, msg, keysAndValues...)
	}
}

// WithValues returns a sink that adds keysAndValues to each line.
func (b both) WithValues(keysAndValues ...any) klog.LogSink {
	return b.each(func(s klog.LogSink) klog.LogSink { return s.WithValues(keysAndValues...) })
}

// WithName returns a sink that adds name to the logger's name.
func (b both) WithName(name string) klog.LogSink {
	return b.each(func(s klog.LogSink) klog.LogSink { return s.WithName(name) })
}
