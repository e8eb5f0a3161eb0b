package manager

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
	"github.com/refvol/refvol/pkg/backoff"
	"github.com/refvol/refvol/pkg/volume"
)

// TestNoValueIsLogged looks for a value in the log of everything that happens to a
// Secret, at the highest verbosity.
func TestNoValueIsLogged(t *testing.T) {
	const canary = leak.Value
	log := searchedLog(t)
	inBubble(t, func(t *testing.T, e *env) {
		e.api.set(func() { e.api.noWatchList = true }) // a plain list's body would be logged
		ref := secretRef("a")
		e.api.put(secret("a", canary))
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		after(time.Second)
		v := e.api.put(secret("a", canary))
		after(0)
		e.wantGet(ref, v, canary)
		for _, unreadable := range []any{
			metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Object: configMap("a", canary)}},
			metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: []byte(`{"kind":"Secret","apiVersion":"v1","data":"` + canary + `"}`)}},
			metav1.WatchEvent{Type: "MODIFIED", Object: runtime.RawExtension{Raw: []byte("k8s\x00" + canary)}},
			metav1.WatchEvent{Type: canary, Object: runtime.RawExtension{Raw: []byte(canary)}},
			metav1.WatchEvent{Type: "ERROR", Object: runtime.RawExtension{Raw: []byte(canary)}},
			canary,
		} {
			e.api.set(func() { e.api.next = unreadable })
			e.api.put(secret("a", canary))
			after(maxPause)
		}
		e.api.set(func() { e.api.compacted = 1000 })
		e.api.closeWatches()
		after(2 * maxPause)
		e.api.delete(ref)
	})
	text := log.String()
	if !strings.Contains(text, "List or watch failed") || !strings.Contains(text, errUnreadable.Error()) {
		t.Fatalf("the log isn't the one looked for:\n%s", text)
	}
}

// hundred returns the names of 100 objects, half of each kind.
func hundred() []volume.Ref {
	refs := make([]volume.Ref, 0, 100)
	for i := range 50 {
		name := fmt.Sprint("o-", i)
		refs = append(refs, secretRef(name), configMapRef(name))
	}
	return refs
}

// outages are failures of an API server for all objects, or for each.
func outages() []outageCase {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	unavailable := apierrors.NewServiceUnavailable("later")
	return []outageCase{
		{"out of reach", syscall.ECONNREFUSED, 1, 1},
		{"broken connections", syscall.ECONNRESET, 1, 1},
		{"unavailable", unavailable, 1, 1},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), 1, 1},
		{"the token is refused", apierrors.NewUnauthorized("no"), 1, 1},
		{"forbidden, for each object", forbidden, 100, 0},
	}
}

// outageCase is a failure, with the lines that it and its end make for 100 objects.
type outageCase struct {
	name        string
	err         error
	lines, ends int
}

func (c *outageCase) check(t *testing.T, log *bytes.Buffer, message string) {
	t.Helper()
	if n := strings.Count(log.String(), message); n != c.lines {
		t.Errorf("one outage of 100 objects made %d lines, want %d, the first:\n%.500s", n, c.lines, log)
	}
	if n := strings.Count(log.String(), "Requests succeed again"); n != c.ends {
		t.Errorf("its end made %d lines, want %d", n, c.ends)
	}
	if n := strings.Count(log.String(), "\n"); n != c.lines+c.ends {
		t.Errorf("%d lines were written, want %d", n, c.lines+c.ends)
	}
}

func TestFailuresAreLoggedOnce(t *testing.T) {
	for _, tc := range outages() {
		t.Run(tc.name, func(t *testing.T) {
			log := captureLog(t, "0")
			inBubble(t, func(t *testing.T, e *env) {
				e.RegisterPod(pod("p"), "v", hundred())
				after(time.Minute)
				e.answerWith(tc.err)
				after(20 * time.Second)
				e.answerWith(nil)
				after(3 * backoff.Long)
			})
			tc.check(t, log, "List or watch failed")
		})
	}
}

// One object that fails for ever hides no outage of all, and one that fails now and then is
// no outage each time.
func TestOneObjectThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		recovers bool
		most     int
	}{
		"for ever":     {false, 4},
		"now and then": {true, 10},
	} {
		t.Run(name, func(t *testing.T) {
			log := captureLog(t, "0")
			inBubble(t, func(t *testing.T, e *env) {
				e.RegisterPod(pod("p"), "v", hundred())
				broken := func(r apiRequest) error {
					if at := time.Now().Second(); r.ref == secretRef("o-0") && (!tc.recovers || at < 30) {
						return apierrors.NewInternalError(errors.New("decrypt"))
					}
					return nil
				}
				e.api.set(func() { e.api.refuse = broken })
				for range 8 { // none is idle by then
					e.api.closeWatches()
					after(30 * time.Second)
				}
				e.answerWith(syscall.ECONNREFUSED)
				after(time.Minute)
				e.api.set(func() { e.api.refuse = broken })
				after(time.Minute)
			})
			text := log.String()
			if lines := strings.Count(text, "\n"); lines > tc.most || !strings.Contains(text, "connection refused") {
				t.Errorf("%d lines, want %d at most and one of the outage:\n%s", lines, tc.most, text)
			}
		})
	}
}

// What ends soon after an outage's end is known; what lasts is told within two minutes.
func TestAnOutageSoonAfterAnother(t *testing.T) {
	log := captureLog(t, "0")
	inBubble(t, func(_ *testing.T, e *env) {
		e.RegisterPod(pod("p"), "v", hundred())
		after(time.Second)
		e.answerWith(syscall.ECONNREFUSED)
		after(20 * time.Second)
		e.answerWith(nil)
		after(10 * time.Second)
		e.answerWith(syscall.ECONNREFUSED)
		after(3 * time.Minute)
	})
	if n := strings.Count(log.String(), "List or watch failed"); n != 2 {
		t.Errorf("two outages, of which one lasts, made %d lines:\n%s", n, log)
	}
}

func TestEachOutageIsLogged(t *testing.T) {
	log := captureLog(t, "0")
	inBubble(t, func(t *testing.T, e *env) {
		e.RegisterPod(pod("p"), "v", []volume.Ref{secretRef("a")})
		for range 3 {
			after(time.Minute)
			e.api.set(func() { e.api.refuse = func(apiRequest) error { return syscall.ECONNREFUSED } })
			e.api.closeWatches()
			after(2 * outageTime)
			_, _ = e.GetObject(secretRef("a"))
			e.api.set(func() { e.api.refuse = nil })
			after(outageTime + time.Minute)
			_, _ = e.GetObject(secretRef("a"))
		}
	})
	if n := strings.Count(log.String(), "List or watch failed"); n != 3 {
		t.Errorf("three outages are logged %d times:\n%s", n, log)
	}
}

// searchedLog has klog write all that it can to the result until the test ends, and search
// that then.
func searchedLog(t *testing.T) *bytes.Buffer {
	t.Helper()
	captureLog(t, "10")
	var log bytes.Buffer
	klog.SetLoggerWithOptions(leaklog.New(t, &log), klog.ContextualLogger(true))
	return &log
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
