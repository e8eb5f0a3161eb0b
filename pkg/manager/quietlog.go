package manager

import "k8s.io/klog/v2"

// bodyLevel is the verbosity from which on client-go logs whole responses, and with
// them the values of every Secret that it lists.
const bodyLevel = 8

// withoutBodies returns logger with everything from bodyLevel on left out, whatever
// the program's own verbosity.
func withoutBodies(logger klog.Logger) klog.Logger {
	return logger.WithSink(quietSink{logger.GetSink()})
}

// quietSink is a LogSink with a ceiling.
type quietSink struct{ klog.LogSink }

// Enabled tells whether a message of this level is written.
func (s quietSink) Enabled(level int) bool {
	return level < bodyLevel && s.LogSink.Enabled(level)
}

// WithValues keeps the ceiling on a logger with values.
func (s quietSink) WithValues(keysAndValues ...any) klog.LogSink {
	return quietSink{s.LogSink.WithValues(keysAndValues...)}
}

// WithName keeps the ceiling on a named logger.
func (s quietSink) WithName(name string) klog.LogSink {
	return quietSink{s.LogSink.WithName(name)}
}

// WithCallDepth keeps the ceiling on a logger that skips stack frames.
func (s quietSink) WithCallDepth(depth int) klog.LogSink {
	if sink, ok := s.LogSink.(interface{ WithCallDepth(int) klog.LogSink }); ok {
		return quietSink{sink.WithCallDepth(depth)}
	}
	return s
}
