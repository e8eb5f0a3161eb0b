package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

func restartAPIServer(t *testing.T) {
	t.Helper()
	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// An API server that starts refuses everybody for a moment. That is nobody's fault and
// no event.
func TestNoDenialWhileTheAPIServerStarts(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	var volumes []*harness.Volume
	for range 10 {
		volumes = append(volumes, n.published("app"))
	}
	for range harness.Scaled(2, 10) {
		restartAPIServer(t)
		value := n.value("app")
		for _, v := range volumes {
			n.arrives(v, "key", value, time.Minute)
			if problem := n.problem(v); problem != "" {
				t.Errorf("the condition is %q", problem)
			}
		}
	}
	for _, v := range volumes {
		if events := n.eventsOf(v, "RefForbidden"); len(events) > 0 {
			t.Errorf("%d events, the first: %s", len(events), events[0].Message)
		}
		n.mustUnpublish(v)
	}
}

// eventsOf returns the events on a volume's pod with a reason.
func (n *node) eventsOf(v *harness.Volume, reason string) []corev1.Event {
	n.t.Helper()
	all, err := shared.Client().CoreV1().Events(n.namespace).List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
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
