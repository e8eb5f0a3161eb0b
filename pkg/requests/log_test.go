package requests

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// TestChangesAreLogged: the log says whose requests wait, and that they go on. It doesn't say so again if they waited in the minute before,
// nor of a request that nobody waits with.
func TestChangesAreLogged(t *testing.T) {
	t.Cleanup(klog.CaptureState().Restore)
	var log bytes.Buffer
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	const wait, goOn = `"Requests to the API server wait" err="the API server answered 401 Unauthorized" for="ns/a"`,
		`"Requests to the API server go on" after="the API server answered 401 Unauthorized" waited=`
	inBubble(t, nil, func(t *testing.T, a *answers, _ *Requests, client http.RoundTripper) {
		waitOnce := func(m Meta) {
			for _, code := range []int{http.StatusUnauthorized, http.StatusOK} {
				a.set(status(code))
				_ = get(t.Context(), client, m)
			}
		}
		var began time.Time
		for _, step := range []struct {
			after time.Duration // since the step before began
			meta  Meta
			want  int
		}{
			{0, Meta{Account: account("a"), Alone: true}, 0},
			{0, ordinary, 1},
			{quietTime, ordinary, 0},
			{quietTime + time.Nanosecond, ordinary, 1},
		} {
			<-time.After(time.Until(began.Add(step.after)))
			log.Reset()
			began = time.Now()
			waitOnce(step.meta)
			text := log.String()
			if strings.Count(text, wait) != step.want || strings.Count(text, goOn) != step.want || strings.Count(text, "\n") != 2*step.want {
				t.Errorf("%v after the step before, want each %d times:\n%s", step.after, step.want, text)
			}
		}
	})
}
