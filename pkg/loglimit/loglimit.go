// Package loglimit limits what one pod can put into the plugin's log.
//
// It owns the number of lines of each pod, and the length of errors in them. It must not know what the lines say. It has no goroutines; a pod
// with lines has a timer, which Close stops.
package loglimit

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/pkg/volume"
)

const (
	// maxLines limits the lines of one pod in a period. The line that says how many were left out is not counted.
	maxLines = 60
	period   = time.Minute
	// maxError limits the bytes of one error. A pod can name hundreds of objects, and each may fail for a reason of its own.
	maxError = 2048
)

// Limiter counts the lines of each pod. It is safe for concurrent use. A nil Limiter limits nothing.
type Limiter struct {
	logger  klog.Logger
	leftOut func()

	mu sync.Mutex
	// pods has the pods with lines in the last period. Each forgets itself when its period is over.
	pods map[types.UID]*count
}

// count is the number of lines of a pod since its period began. Limiter.mu guards it.
type count struct {
	pod            volume.Pod
	lines, leftOut int
	timer          *time.Timer
}

// New returns a Limiter. It logs with logger how many lines were left out, and calls leftOut for each of them. leftOut must not block.
func New(logger klog.Logger, leftOut func()) *Limiter {
	return &Limiter{logger: logger, leftOut: leftOut, pods: map[types.UID]*count{}}
}

// Close logs at once how many lines were left out, and stops all timers. Call it when nothing logs any more.
func (l *Limiter) Close() {
	l.mu.Lock()
	all := slices.Collect(maps.Values(l.pods))
	l.mu.Unlock()
	for _, c := range all {
		c.timer.Stop()
		l.end(c)
	}
}

// Logger returns a logger for lines about a pod. It leaves out lines above the pod's limit, except lines of a higher verbosity than 0. It
// cuts off long errors. A pod without a UID has no limit.
func (l *Limiter) Logger(logger klog.Logger, pod volume.Pod) klog.Logger {
	if l == nil || pod.UID == "" {
		return logger
	}
	return logr.New(&sink{LogSink: logger.WithCallDepth(1).GetSink(), limiter: l, pod: pod})
}

// allow counts a line and reports whether it may be logged.
func (l *Limiter) allow(pod volume.Pod) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.pods[pod.UID]
	if c == nil {
		c = &count{pod: pod}
		c.timer = time.AfterFunc(period, func() { l.end(c) })
		l.pods[pod.UID] = c
	}
	if c.pod.Name == "" { // an unpublish knows only the UID
		c.pod = pod
	}
	if c.lines < maxLines {
		c.lines++
		return true
	}
	c.leftOut++
	l.leftOut()
	return false
}

// end ends a pod's period and logs how many lines were left out in it, once.
func (l *Limiter) end(c *count) {
	l.mu.Lock()
	pod, lines, isEnded := c.pod, c.leftOut, l.pods[c.pod.UID] != c
	if !isEnded {
		delete(l.pods, pod.UID)
	}
	l.mu.Unlock()
	if !isEnded && lines > 0 {
		l.logger.Info("Lines about the volumes of a pod were left out", "pod", klog.KRef(pod.Namespace, pod.Name), "podUID", pod.UID, "lines", lines)
	}
}

// sink passes on the lines that the limiter allows.
type sink struct {
	logr.LogSink
	limiter *Limiter
	pod     volume.Pod
}

// Init does nothing, because the sink below is initialized already.
func (*sink) Init(logr.RuntimeInfo) {}

func (s *sink) Info(level int, msg string, keysAndValues ...any) {
	if level == 0 {
		if !s.limiter.allow(s.pod) {
			return
		}
		keysAndValues = slices.Clone(keysAndValues)
		for i, value := range keysAndValues {
			if err, ok := value.(error); ok {
				keysAndValues[i] = shorten(err)
			}
		}
	}
	s.LogSink.Info(level, msg, keysAndValues...)
}

func (s *sink) Error(err error, msg string, keysAndValues ...any) {
	if s.limiter.allow(s.pod) {
		s.LogSink.Error(shorten(err), msg, keysAndValues...)
	}
}

func (s *sink) WithValues(keysAndValues ...any) logr.LogSink {
	return &sink{s.LogSink.WithValues(keysAndValues...), s.limiter, s.pod}
}

func (s *sink) WithName(name string) logr.LogSink {
	return &sink{s.LogSink.WithName(name), s.limiter, s.pod}
}

func (s *sink) WithCallDepth(depth int) logr.LogSink {
	if below, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return &sink{below.WithCallDepth(depth), s.limiter, s.pod}
	}
	return s
}

// shorten returns an error whose text has at most maxError bytes, and the number of those that it lacks.
func shorten(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return errors.New(strings.ToValidUTF8(text[:maxError], "") + fmt.Sprintf("... (%d bytes)", len(text)))
}
