package clientlog

import (
	"bytes"
	"context"
	"flag"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

func TestQuietKeepsItsCeiling(t *testing.T) {
	log := captureLog(t, "10")
	logger := Quiet(klog.Background())
	for _, l := range []klog.Logger{
		logger, logger.WithName("n"), logger.WithValues("k", "v"), logger.WithCallDepth(1),
		logger.WithName("n").WithValues("k", "v").WithCallDepth(1),
		klog.FromContext(Context(context.Background())),
	} {
		const own = bodyLevel - detailLevel
		l.V(own - 1).Info("below")
		l.V(own).Info("above")
		if l.V(own).Enabled() || !l.V(own-1).Enabled() {
			t.Error("the ceiling is elsewhere")
		}
	}
	if n := strings.Count(log.String(), "below"); n != 6 || strings.Contains(log.String(), "above") {
		t.Errorf("got\n%s", log)
	}
}

func TestQuietOfNothing(t *testing.T) {
	l := Quiet(klog.Logger{})
	l.Info("nowhere")
	l.WithValues("k", "v").V(1).Info("nowhere")
}

// captureLog has klog write to the result at that verbosity until the test ends.
func captureLog(t *testing.T, verbosity string) *bytes.Buffer {
	t.Helper()
	t.Cleanup(klog.CaptureState().Restore)
	fs := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(fs)
	for name, value := range map[string]string{"logtostderr": "false", "alsologtostderr": "false", "stderrthreshold": "FATAL", "v": verbosity} {
		if err := fs.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	klog.SetOutput(&log)
	return &log
}
