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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/leak/leaklog"
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
			map[string]any{"type": "MODIFIED", "object": map[string]string{"kind": "Secret", "apiVersion": "v1", "data": canary}},
			map[string]any{"type": canary, "object": canary},
			map[string]any{"type": "ERROR", "object": canary},
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

func TestFailuresAreLoggedOnce(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "a", errors.New("no"))
	for _, tc := range []struct {
		name string
		err  error
		want int
	}{
		{"out of reach, for all objects together", syscall.ECONNREFUSED, 1},
		{"broken connections, for all objects together", syscall.ECONNRESET, 1},
		{"forbidden, for each object", forbidden, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := captureLog(t, "0")
			inBubble(t, func(t *testing.T, e *env) {
				refs := []volume.Ref{secretRef("a"), secretRef("b"), configMapRef("a")}
				e.RegisterPod(pod("p"), "v", refs)
				after(time.Minute)
				e.api.set(func() { e.api.refuse = func(apiRequest) error { return tc.err } })
				e.api.closeWatches()
				after(10 * time.Minute)
				e.api.set(func() { e.api.refuse = nil })
				after(maxPause)
			})
			if n := strings.Count(log.String(), "\n"); n != tc.want {
				t.Errorf("one outage made %d lines, want %d:\n%s", n, tc.want, log)
			}
		})
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
			after(time.Minute)
			e.api.set(func() { e.api.refuse = nil })
			after(3 * time.Minute)
			_, _ = e.Lookup(secretRef("a"))
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
