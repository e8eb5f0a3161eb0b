// Package leaklog is a log at the highest verbosity that must hold no value and no token, and no
// key twice in a line. It is for tests.
//
// Every line is written as text and as JSON, as the plugin's two formats have it, and both
// are searched when the test ends.
package leaklog

import (
	"bytes"
	stdjson "encoding/json"
	"fmt"
	"io"
	"sync"

	"k8s.io/component-base/logs/json"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/leak"
)

// verbosity is more than any line asks for: client-go logs bodies at up to 10, and the
// plugin puts what client-go logs 4 higher.
const verbosity = 20

// TB is what New needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(f func())
	Errorf(format string, args ...any)
}

// New returns a logger whose lines t must find free of values and tokens when it ends; text
// gets each line as text. What logs must have ended by then. The logger is as safe for
// concurrent use as text is.
func New(t TB, text io.Writer) klog.Logger {
	t.Helper()
	asText, asJSON := &buffer{}, &buffer{}
	t.Cleanup(func() {
		t.Helper()
		for name, log := range map[string]*buffer{"the log": asText, "the log in JSON": asJSON} {
			if err := leak.Check(name, log.bytes()); err != nil {
				t.Errorf("%v", err)
			}
		}
		for line := range bytes.Lines(asJSON.bytes()) {
			if err := CheckKeys(line); err != nil {
				t.Errorf("%v", err)
			}
		}
	})
	textLogger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(io.MultiWriter(asText, text)), textlogger.Verbosity(verbosity)))
	jsonLogger, _ := json.NewJSONLogger(verbosity, asJSON, nil, nil)
	return klog.New(both{textLogger.GetSink(), jsonLogger.GetSink()})
}

// CheckKeys returns an error if a line of a log in JSON, which is an object, has a key twice.
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

// buffer is safe for concurrent use.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// Sync has nothing to do; the JSON logger wants it.
func (b *buffer) Sync() error { return nil }

func (b *buffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.text.Bytes())
}

// both is a LogSink that hands everything to two.
type both [2]klog.LogSink

func (b both) each(of func(klog.LogSink) klog.LogSink) klog.LogSink { return both{of(b[0]), of(b[1])} }

// Init does nothing: the two are in use by loggers of their own.
func (b both) Init(klog.RuntimeInfo) {}

// Enabled tells whether either wants a line of this level.
func (b both) Enabled(level int) bool { return b[0].Enabled(level) || b[1].Enabled(level) }

// Info writes a line.
func (b both) Info(level int, msg string, keysAndValues ...any) {
	for _, sink := range b {
		sink.Info(level, msg, keysAndValues...)
	}
}

// Error writes a line about an error.
func (b both) Error(err error, msg string, keysAndValues ...any) {
	for _, sink := range b {
		sink.Error(err, msg, keysAndValues...)
	}
}

// WithValues adds to each line.
func (b both) WithValues(keysAndValues ...any) klog.LogSink {
	return b.each(func(s klog.LogSink) klog.LogSink { return s.WithValues(keysAndValues...) })
}

// WithName adds to the logger's name.
func (b both) WithName(name string) klog.LogSink {
	return b.each(func(s klog.LogSink) klog.LogSink { return s.WithName(name) })
}
