package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// answer waits for a call that publishing began.
func (n *node) answer(from <-chan error, within time.Duration) error {
	n.t.Helper()
	select {
	case err := <-from:
		return err
	case <-time.After(within):
		n.t.Fatalf("the call has not returned after %s", within)
		return nil
	}
}

// finalAnswer publishes a volume as a kubelet does until the plugin has asked the API server,
// which on a busy machine may take longer than a publish waits, and returns that answer. It
// is for any goroutine.
func (n *node) finalAnswer(v *harness.Volume) (err error) {
	_ = harness.Poll(n.t.Context(), soon, 10*time.Millisecond, func() error {
		if err = n.Publish(n.t.Context(), v); status.Code(err) == codes.Unavailable {
			return err
		}
		return nil
	})
	return err
}

// content returns what one file of the volume holds now.
func (n *node) content(v *harness.Volume, path string) (string, error) {
	data, err := os.ReadFile(filepath.Join(n.Target(v), path))
	return string(data), err
}

func (n *node) wantContent(v *harness.Volume, path, want string) {
	n.t.Helper()
	if got, err := n.content(v, path); err != nil || got != want {
		n.t.Errorf("%s holds %q, %v, want %q", path, got, err, want)
	}
}

// arrives waits until a file holds a value and returns how long that took.
func (n *node) arrives(v *harness.Volume, path, want string, within time.Duration) time.Duration {
	n.t.Helper()
	begin := time.Now()
	err := harness.Poll(n.t.Context(), within, time.Millisecond, func() error {
		got, err := n.content(v, path)
		if err == nil && got != want {
			err = fmt.Errorf("%s holds %q, want %q", path, got, want)
		}
		return err
	})
	must.Do(n.t, err)
	return time.Since(begin)
}

func (n *node) wantMounts(want int) {
	n.t.Helper()
	mounts := must.Get(n.VolumeMounts())(n.t)
	if len(mounts) != want {
		n.t.Fatalf("%d mounts below the kubelet's directory, want %d: %+v", len(mounts), want, mounts)
	}
}

// wantNothingLeft checks that no mount, directory or file of any volume is left.
func (n *node) wantNothingLeft() {
	n.t.Helper()
	n.wantMounts(0)
	pods, err := os.ReadDir(filepath.Join(n.KubeletDir(), "pods"))
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	if len(pods) > 0 {
		n.t.Errorf("left of pods: %v", pods)
	}
}

// watches returns how many watches of a resource the API server holds open.
func watches(ctx context.Context, t *testing.T, resource string) int {
	t.Helper()
	count := must.Get(shared.OpenWatches(ctx, resource))(t)
	return count
}

func wantWatches(t *testing.T, resource string, want int) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if got := watches(t.Context(), t, resource); got != want {
			return fmt.Errorf("%d open watches of %s, want %d", got, resource, want)
		}
		return nil
	})
}

// wantStatus checks the code of an error and that its text holds every one of texts.
func wantStatus(t *testing.T, err error, code codes.Code, texts ...string) {
	t.Helper()
	s, ok := status.FromError(err)
	if !ok || s.Code() != code {
		t.Errorf("error = %v, want code %s", err, code)
		return
	}
	for _, text := range texts {
		if !strings.Contains(s.Message(), text) {
			t.Errorf("message = %q, want %q in it", s.Message(), text)
		}
	}
}

// soon is how long a change may take on a busy machine, where the test is not about time.
const soon = time.Minute

// problem returns the condition of a volume and the reason for it by the plugin's status, "" if there is none.
func (n *node) problem(v *harness.Volume) string {
	n.t.Helper()
	report := must.Get(n.report())(n.t)
	for i := range report.Volumes {
		if told := &report.Volumes[i]; told.VolumeID == v.ID() && told.Reason != "" {
			return told.Condition + ": " + told.Reason
		}
	}
	return ""
}

// hasCondition waits until a volume has no problem, with an empty text, or one with this text.
func (n *node) hasCondition(v *harness.Volume, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		if problem := n.problem(v); (problem != "") != (text != "") || !strings.Contains(problem, text) {
			return fmt.Errorf("the problem is %q, want %q", problem, text)
		}
		return nil
	})
}

// eventsOf returns the events on a volume's pod with a reason.
func (n *node) eventsOf(v *harness.Volume, reason string) []corev1.Event {
	n.t.Helper()
	all := must.Get(shared.Client().CoreV1().Events(n.namespace).List(n.t.Context(), metav1.ListOptions{}))(n.t)
	var events []corev1.Event
	for _, event := range all.Items {
		if string(event.InvolvedObject.UID) == v.UID && event.Reason == reason {
			events = append(events, event)
		}
	}
	return events
}

// hasEvent waits for an event on the volume's pod with this reason and text, that
// was written once, whatever was retried.
func (n *node) hasEvent(v *harness.Volume, reason, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		events := n.eventsOf(v, reason)
		for i := range events {
			event := &events[i]
			if !strings.Contains(event.Message, text) {
				continue
			}
			if event.InvolvedObject.Kind != "Pod" || event.Type != corev1.EventTypeWarning || event.Count != 1 {
				return fmt.Errorf("event on %+v of type %s, %d times", event.InvolvedObject, event.Type, event.Count)
			}
			return nil
		}
		return fmt.Errorf("no event %s with %q among %+v", reason, text, events)
	})
}

// showsJust says how a volume's files differ from data.
func (n *node) showsJust(v *harness.Volume, data map[string]string) error {
	files, err := harness.Files(n.Target(v))
	if err != nil {
		return err
	}
	for key, want := range data {
		if f, ok := files[key]; !ok || f != want {
			return fmt.Errorf("%.60s: there is %t, with %d bytes, want %d", key, ok, len(f), len(want))
		}
	}
	if len(files) != len(data) {
		return fmt.Errorf("%d files, want %d", len(files), len(data))
	}
	return nil
}

// pruned returns nil once the volume holds nothing but its files and the present generation.
func (n *node) pruned(v *harness.Volume) error { return harness.Pruned(n.Target(v)) }

// each waits until f returns nil for the number of each volume.
func (n *node) each(volumes []*harness.Volume, f func(i int) error) {
	n.t.Helper()
	within := soon
	if os.Getenv(harness.EmulatedVariable) != "" {
		within *= 4 // the first volume may be the last to become current
	}
	for i := range volumes {
		harness.Eventually(n.t, within, func() error {
			if err := f(i); err != nil {
				return fmt.Errorf("volume %d: %w", i, err)
			}
			return nil
		})
	}
}
