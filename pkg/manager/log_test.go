package manager

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/pkg/loglimit"
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
		"busy":            {apierrors.NewTooManyRequests("later", 20), 0, ""},
		"each is refused": {errForbidden, 100, "no more"},
		"each fails":      {apierrors.NewInternalError(errors.New("etcd")), 100, "Internal error"},
	} {
		t.Run(name, func(t *testing.T) {
			log := captureLog(t)
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

// A pod whose objects all fail fills no log: above a number of lines a minute they are left out, and one line says how many.
func TestTheLogOfAPodIsLimited(t *testing.T) {
	log := captureLog(t)
	synctest.Test(t, func(t *testing.T) {
		leftOut := 0
		limit := loglimit.New(klog.Background(), func() { leftOut++ })
		e := newEnv(t, Options{LogLimit: limit})
		e.answerWith(errForbidden)
		e.RegisterPod(pod("p"), "v", hundred())
		after(2 * time.Minute)
		e.stop()
		limit.Close()
		if n := strings.Count(log.String(), "\n"); n > 62 || leftOut < 40 || !strings.Contains(log.String(), "were left out") {
			t.Errorf("%d lines, %d left out:\n%s", n, leftOut, log)
		}
	})
}

// captureLog makes klog write to the result until the test ends.
func captureLog(t *testing.T) *leak.Log {
	t.Helper()
	t.Cleanup(klog.CaptureState().Restore)
	log := &leak.Log{}
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))))
	return log
}
