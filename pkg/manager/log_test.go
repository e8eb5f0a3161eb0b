package manager

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// An outage of all objects is logged in a line or two. A failure of one object is logged once, however long it lasts. Answers of a busy API
// server are not logged, because it may send them for all objects to all nodes.
func TestTheLogTellsAFailureOnce(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		lines int
		says  string
	}{
		"an outage":       {syscall.ECONNREFUSED, 20, "connection refused"},
		"a refused token": {errUnauthorized, 20, "401 Unauthorized"},
		"busy":            {apierrors.NewTooManyRequests("later", 1), 0, ""},
		"each is refused": {errForbidden, 100, "no more"},
		"each fails":      {apierrors.NewInternalError(errors.New("etcd")), 100, "Internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			log := captureLog(t, "0")
			inBubble(t, func(_ *testing.T, e *env) {
				e.RegisterPod(pod("p"), "v", hundred())
				after(time.Minute)
				e.answerWith(test.err)
				after(3 * time.Minute)
				e.answerWith(nil)
				after(time.Minute)
			})
			text := log.String()
			if n := strings.Count(text, "\n"); n > test.lines+2 || (n == 0) != (test.lines == 0) || !strings.Contains(text, test.says) {
				t.Errorf("%d lines, want %d and %q:\n%s", n, test.lines, test.says, text)
			}
		})
	}
}

// captureLog makes klog write to the result, at that verbosity, until the test ends.
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
