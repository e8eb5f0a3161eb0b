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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/refvol/refvol/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newRecorder returns a Recorder, and a channel with the events that it writes.
func newRecorder(t *testing.T) (*Recorder, <-chan *corev1.Event) {
	t.Helper()
	client := fake.NewClientset()
	written := make(chan *corev1.Event, 10)
	client.PrependReactor("create", "events", func(action k8stesting.Action) (bool, runtime.Object, error) {
		event := action.(k8stesting.CreateAction).GetObject().(*corev1.Event)
		written <- event
		return true, event, nil
	})
	r := New(t.Context(), eventsOf(client), "csi.refvol.dev", "node-1")
	t.Cleanup(r.Shutdown)
	return r, written
}

func eventsOf(client kubernetes.Interface) func(string) Events {
	return func(namespace string) Events { return client.CoreV1().Events(namespace) }
}

func receive(t *testing.T, written <-chan *corev1.Event) *corev1.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case event := <-written:
		return event
	case <-ctx.Done():
		t.Fatal("no event was written")
		return nil
	}
}

func TestWarnCutsOffLongMessages(t *testing.T) {
	r, written := newRecorder(t)
	for _, n := range []int{maxMessage, maxMessage + 1} {
		r.Warn(volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}, "VolumeUpdateFailed", strings.Repeat("x", n))
		got := receive(t, written).Message
		if len(got) != maxMessage || strings.HasSuffix(got, "...") != (n > maxMessage) {
			t.Errorf("a message of %d bytes became one of %d: ...%s", n, len(got), got[len(got)-5:])
		}
	}
}

// TestWarnAgain: the count of an event that was written already increases.
func TestWarnAgain(t *testing.T) {
	client := fake.NewClientset()
	patched := make(chan k8stesting.PatchAction, 1)
	client.PrependReactor("patch", "events", func(action k8stesting.Action) (bool, runtime.Object, error) {
		patched <- action.(k8stesting.PatchAction)
		return true, &corev1.Event{}, nil
	})
	r := New(t.Context(), eventsOf(client), "csi.refvol.dev", "node-1")
	t.Cleanup(r.Shutdown)
	for range 2 {
		r.Warn(volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}, "RefNotFound", "not found")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case action := <-patched:
		if action.GetNamespace() != "shop" || action.GetPatchType() != types.StrategicMergePatchType || !strings.Contains(string(action.GetPatch()), `"count":2`) {
			t.Errorf("patched by %s in %s: %s", action.GetPatchType(), action.GetNamespace(), action.GetPatch())
		}
	case <-ctx.Done():
		t.Fatal("no event was patched")
	}
}

// TestFailuresAreLoggedOnce: while events cannot be written, each event is tried twelve times. A failure that lasts is logged again later.
func TestFailuresAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		tries := 0
		client.PrependReactor("create", "events", func(k8stesting.Action) (bool, runtime.Object, error) {
			tries++
			return true, nil, errors.New("connection refused")
		})
		var log bytes.Buffer
		ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log), textlogger.Verbosity(2))))
		r := New(ctx, eventsOf(client), "csi.refvol.dev", "node-1")
		for hour := range 2 {
			for range 3 {
				r.Warn(volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}, "RefNotFound", "not found")
			}
			<-time.After(time.Hour)
			synctest.Wait()
			if tries < 12*(hour+1) {
				t.Errorf("%d tries", tries)
			}
			if lines := strings.Count(log.String(), "\n"); lines != hour+1 || strings.Count(log.String(), "connection refused") != lines {
				t.Errorf("%d lines after %d hours: %s", lines, hour+1, &log)
			}
		}
		r.Warn(volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}, "RefNotFound", "not found")
		<-time.After(time.Minute) // a shutdown ends the tries
		r.Shutdown()
	})
}

// stalled is an API server that accepts requests and never answers.
type stalled struct{}

func (stalled) Create(ctx context.Context, _ *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (stalled) Patch(ctx context.Context, _ string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Event, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestAStalledRequestEnds: one goroutine writes all events, so no request may last.
func TestAStalledRequestEnds(t *testing.T) {
	for name, write := range map[string]func(*sink) error{
		"create": func(s *sink) error { _, err := s.Create(&corev1.Event{}); return err },
		"patch":  func(s *sink) error { _, err := s.Patch(&corev1.Event{}, nil); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sink{events: func(string) Events { return stalled{} }, logger: klog.Background()}
				began := time.Now()
				if err := write(s); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != writeTimeout {
					t.Errorf("got %v after %s", err, time.Since(began))
				}
			})
		})
	}
}

// slow is an API server that answers after some seconds.
type slow struct {
	stalled
	written int
}

func (s *slow) Create(ctx context.Context, event *corev1.Event, _ metav1.CreateOptions) (*corev1.Event, error) {
	select {
	case <-time.After(5 * time.Second):
		s.written++
		return event, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// TestASlowRequest: an event is written by an API server that is busy.
func TestASlowRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{}
		r := New(t.Context(), func(string) Events { return s }, "csi.refvol.dev", "node-1")
		r.Warn(volume.Pod{Namespace: "shop", Name: "web-0", UID: "8f7e"}, "RefNotFound", "not found")
		<-time.After(5 * time.Minute)
		r.Shutdown()
		synctest.Wait()
		if s.written != 1 {
			t.Errorf("written %d times", s.written)
		}
	})
}
