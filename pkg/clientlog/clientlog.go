// Package clientlog keeps values out of the logs of a client of the API server.
//
// It owns the limit on the verbosity of client-go, which from a certain level logs whole bodies of requests and responses, including those
// of Secrets. It must not know who sends a request.
package clientlog

import (
	"context"

	"k8s.io/klog/v2"
)

const (
	// bodyLevel is the verbosity from which client-go logs bodies.
	bodyLevel = 8
	// detailLevel is the level for client-go's messages that have no level of their own.
	detailLevel = 4
)

// Quiet returns a logger for client-go. Its messages start at detailLevel. It logs nothing that could hold a value, at any verbosity of the
// program.
func Quiet(logger klog.Logger) klog.Logger {
	if logger.GetSink() == nil { // it discards everything
		return logger
	}
	return logger.WithSink(quietSink{logger.GetSink()}).V(detailLevel)
}

// Context returns ctx with a quiet logger, for requests.
func Context(ctx context.Context) context.Context {
	return klog.NewContext(ctx, Quiet(klog.FromContext(ctx)))
}

// quietSink is a LogSink with a limited verbosity.
type quietSink struct{ klog.LogSink }

// Enabled reports whether messages of this level are written.
func (s quietSink) Enabled(level int) bool {
	return level < bodyLevel && s.LogSink.Enabled(level)
}

// WithValues keeps the limit for a logger with values.
func (s quietSink) WithValues(keysAndValues ...any) klog.LogSink {
	return quietSink{s.LogSink.WithValues(keysAndValues...)}
}

// WithName keeps the limit for a named logger.
func (s quietSink) WithName(name string) klog.LogSink {
	return quietSink{s.LogSink.WithName(name)}
}

// WithCallDepth keeps the limit for a logger that skips stack frames.
func (s quietSink) WithCallDepth(depth int) klog.LogSink {
	if sink, ok := s.LogSink.(interface{ WithCallDepth(int) klog.LogSink }); ok {
		return quietSink{sink.WithCallDepth(depth)}
	}
	return s
}
