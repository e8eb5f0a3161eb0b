package clientlog

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

func TestQuietKeepsItsCeiling(t *testing.T) {
	var log bytes.Buffer
	loud := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(10)))
	logger := Quiet(loud)
	for _, l := range []klog.Logger{
		logger, logger.WithName("n"), logger.WithValues("k", "v"), logger.WithCallDepth(1),
		logger.WithName("n").WithValues("k", "v").WithCallDepth(1),
		klog.FromContext(Context(klog.NewContext(t.Context(), loud))),
	} {
		const own = bodyLevel - detailLevel
		l.V(own - 1).Info("below")
		l.V(own).Info("above")
		if l.V(own).Enabled() || !l.V(own-1).Enabled() {
			t.Error("the ceiling is elsewhere")
		}
	}
	if n := strings.Count(log.String(), "below"); n != 6 || strings.Contains(log.String(), "above") {
		t.Errorf("got\n%s", log.String())
	}
}

func TestQuietOfNothing(t *testing.T) {
	l := Quiet(klog.Logger{})
	l.Info("nowhere")
	l.WithValues("k", "v").V(1).Info("nowhere")
}
