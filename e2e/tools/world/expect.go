package world

import (
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

// Answer waits for a call that Publishing began.
func (n *Node) Answer(from <-chan error, within time.Duration) error {
	n.T.Helper()
	select {
	case err := <-from:
		return err
	case <-time.After(within):
		n.T.Fatalf("the call has not returned after %s", within)
		return nil
	}
}

// FinalAnswer publishes a volume as a kubelet does until the plugin has asked the API server, which on a busy machine may take longer than
// a publish waits, and returns that answer. It is for any goroutine.
func (n *Node) FinalAnswer(v *harness.Volume) (err error) {
	_ = harness.Poll(n.T.Context(), Soon, 10*time.Millisecond, func() error {
		if err = n.Publish(n.T.Context(), v); status.Code(err) == codes.Unavailable {
			return err
		}
		return nil
	})
	return err
}

// Content returns what one file of the volume holds now.
func (n *Node) Content(v *harness.Volume, path string) (string, error) {
	data, err := os.ReadFile(filepath.Join(n.Target(v), path))
	return string(data), err
}

// WantContent checks what one file of the volume holds now.
func (n *Node) WantContent(v *harness.Volume, path, want string) {
	n.T.Helper()
	if got, err := n.Content(v, path); err != nil || got != want {
		n.T.Errorf("%s holds %q, %v, want %q", path, got, err, want)
	}
}

// Arrives waits until a file holds a value and returns how long that took.
func (n *Node) Arrives(v *harness.Volume, path, want string, within time.Duration) time.Duration {
	n.T.Helper()
	begin := time.Now()
	err := harness.Poll(n.T.Context(), within, time.Millisecond, func() error {
		got, err := n.Content(v, path)
		if err == nil && got != want {
			err = fmt.Errorf("%s holds %q, want %q", path, got, want)
		}
		return err
	})
	must.Do(n.T, err)
	return time.Since(begin)
}

// WantMounts checks how many volumes are mounted.
func (n *Node) WantMounts(want int) {
	n.T.Helper()
	mounts := must.Get(n.VolumeMounts())(n.T)
	if len(mounts) != want {
		n.T.Fatalf("%d mounts below the kubelet's directory, want %d: %+v", len(mounts), want, mounts)
	}
}

// WantNothingLeft checks that no mount, directory or file of any volume is left.
func (n *Node) WantNothingLeft() {
	n.T.Helper()
	n.WantMounts(0)
	pods, err := os.ReadDir(filepath.Join(n.KubeletDir(), "pods"))
	if err != nil && !os.IsNotExist(err) {
		n.T.Fatal(err)
	}
	if len(pods) > 0 {
		n.T.Errorf("left of pods: %v", pods)
	}
}

// WantStatus checks the code of an error and that its text holds every one of texts.
func WantStatus(t *testing.T, err error, code codes.Code, texts ...string) {
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

// Soon is how long a change may take on a busy machine, where the test is not about time.
const Soon = time.Minute

// Healed is how long after the end of a fault a volume may take to be current. A half-open connection is given up after 50 s. The longest
// pause is the wait that a server may ask for, of a minute, and half of that as jitter.
const Healed = 3 * time.Minute

// problem returns the condition of a volume and the reason for it by the plugin's status, "" if there is none.
func (n *Node) problem(v *harness.Volume) string {
	n.T.Helper()
	report := must.Get(n.Report())(n.T)
	for i := range report.Volumes {
		if told := &report.Volumes[i]; told.VolumeID == v.ID() && told.Reason != "" {
			return told.Condition + ": " + told.Reason
		}
	}
	return ""
}

// HasCondition waits until a volume has no problem, with an empty text, or one with this text.
func (n *Node) HasCondition(v *harness.Volume, text string) {
	n.T.Helper()
	harness.Eventually(n.T, Soon, func() error {
		if problem := n.problem(v); (problem != "") != (text != "") || !strings.Contains(problem, text) {
			return fmt.Errorf("the problem is %q, want %q", problem, text)
		}
		return nil
	})
}

// EventsOf returns the events on a volume's pod with a reason.
func (n *Node) EventsOf(v *harness.Volume, reason string) []corev1.Event {
	n.T.Helper()
	all := must.Get(n.lab.Client().CoreV1().Events(n.Namespace).List(n.T.Context(), metav1.ListOptions{}))(n.T)
	var events []corev1.Event
	for _, event := range all.Items {
		if string(event.InvolvedObject.UID) == v.UID && event.Reason == reason {
			events = append(events, event)
		}
	}
	return events
}

// ShowsJust says how a volume's files differ from data.
func (n *Node) ShowsJust(v *harness.Volume, data map[string]string) error {
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

// Pruned returns nil once the volume holds nothing but its files and the present generation.
func (n *Node) Pruned(v *harness.Volume) error { return harness.Pruned(n.Target(v)) }

// Each waits until f returns nil for the number of each volume.
func (n *Node) Each(volumes []*harness.Volume, f func(i int) error) {
	n.T.Helper()
	within := Soon
	if os.Getenv(harness.EmulatedVariable) != "" {
		within *= 4 // the first volume may be the last to become current
	}
	for i := range volumes {
		harness.Eventually(n.T, within, func() error {
			if err := f(i); err != nil {
				return fmt.Errorf("volume %d: %w", i, err)
			}
			return nil
		})
	}
}
