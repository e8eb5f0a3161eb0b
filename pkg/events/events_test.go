package events

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var web = volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}

// apiServer answers after a time, with err if that is not nil. It has the events of the namespace shop.
type apiServer struct {
	takes   time.Duration
	err     error
	tries   int
	created []*corev1.Event
	patches []string
}

func (s *apiServer) answer(ctx context.Context) error {
	s.tries++
	select {
	case <-time.After(s.takes):
		return s.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *apiServer) Create(ctx context.Context, event *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	err := s.answer(ctx)
	if err == nil {
		s.created = append(s.created, event)
	}
	return event, err
}

func (s *apiServer) Patch(
	ctx context.Context, _ string, form types.PatchType, patch []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Event, error) {
	err := s.answer(ctx)
	if err == nil && form == types.StrategicMergePatchType {
		s.patches = append(s.patches, string(patch))
	}
	return &corev1.Event{}, err
}

// withRecorder runs a test with fake time, a Recorder and its log. after lets time pass, and everything that happens in it.
func withRecorder(t *testing.T, s *apiServer, test func(t *testing.T, r *Recorder, log *bytes.Buffer, after func(time.Duration))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(2))))
		r := New(ctx, func(namespace string) Events {
			if namespace != web.Namespace {
				t.Errorf("an event in the namespace %q", namespace)
			}
			return s
		}, "csi.refvol.dev", "node-1")
		test(t, r, &log, func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		})
		r.Shutdown() // it ends the tries
	})
}

// TestWarn: a long message is cut off, and an API server that is busy writes the event.
func TestWarn(t *testing.T) {
	s := &apiServer{takes: 5 * time.Second}
	withRecorder(t, s, func(t *testing.T, r *Recorder, _ *bytes.Buffer, after func(time.Duration)) {
		for i, n := range []int{maxMessage, maxMessage + 1} {
			r.Warn(web, "VolumeUpdateFailed", strings.Repeat("x", n))
			after(time.Minute)
			if len(s.created) != i+1 {
				t.Fatalf("%d events were written, want %d", len(s.created), i+1)
			}
			got := s.created[i].Message
			if len(got) != maxMessage || strings.HasSuffix(got, "...") != (n > maxMessage) {
				t.Errorf("a message of %d bytes became one of %d: ...%s", n, len(got), got[len(got)-5:])
			}
		}
	})
}

// TestWarnAgain: the count of an event that was written already increases.
func TestWarnAgain(t *testing.T) {
	s := &apiServer{}
	withRecorder(t, s, func(t *testing.T, r *Recorder, _ *bytes.Buffer, after func(time.Duration)) {
		for range 2 {
			r.Warn(web, "RefNotFound", "not found")
			after(time.Minute)
		}
		if len(s.created) != 1 || len(s.patches) != 1 || !strings.Contains(s.patches[0], `"count":2`) {
			t.Errorf("%d events were written, and patched by %q", len(s.created), s.patches)
		}
	})
}

// TestLastEvents: what the last calls report is written after the end of the program's context.
func TestLastEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &apiServer{takes: time.Second}
		ctx, end := context.WithCancel(t.Context())
		r := New(ctx, func(string) Events { return s }, "csi.refvol.dev", "node-1")
		end()
		synctest.Wait()
		r.Warn(web, "RefNotFound", "not found")
		<-time.After(time.Minute)
		synctest.Wait()
		if len(s.created) != 1 {
			t.Errorf("%d events were written, want 1", len(s.created))
		}
		r.Shutdown()
	})
}

// TestFailuresAreLoggedOnce: while events cannot be written, each event is tried twelve times. A failure that lasts is logged again later.
func TestFailuresAreLoggedOnce(t *testing.T) {
	s := &apiServer{err: errors.New("connection refused")}
	withRecorder(t, s, func(t *testing.T, r *Recorder, log *bytes.Buffer, after func(time.Duration)) {
		for hour := range 2 {
			for range 3 {
				r.Warn(web, "RefNotFound", "not found")
			}
			after(time.Hour)
			if s.tries < 12*(hour+1) {
				t.Errorf("%d tries", s.tries)
			}
			if lines := strings.Count(log.String(), "\n"); lines != hour+1 || strings.Count(log.String(), "connection refused") != lines {
				t.Errorf("%d lines after %d hours: %s", lines, hour+1, log)
			}
		}
		r.Warn(web, "RefNotFound", "not found")
		after(time.Minute)
	})
}

// TestAStalledRequestEnds: one goroutine writes all events, so no request may last.
func TestAStalledRequestEnds(t *testing.T) {
	for name, write := range map[string]func(*sink) error{
		"create": func(s *sink) error { _, err := s.Create(&corev1.Event{}); return err },
		"patch":  func(s *sink) error { _, err := s.Patch(&corev1.Event{}, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sink{events: func(string) Events { return &apiServer{takes: time.Hour} }, logger: klog.Background()}
				began := time.Now()
				if err := write(s); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != writeTimeout {
					t.Errorf("got %v after %s", err, time.Since(began))
				}
			})
		})
	}
}
