package integration

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// hasEvent waits for an event on the volume's pod with this reason and text, that
// was written once, whatever was retried.
func (n *node) hasEvent(v *harness.Volume, reason, text string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		events, err := shared.Client().CoreV1().Events(n.namespace).List(n.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for _, event := range events.Items {
			found = append(found, event.Reason+": "+event.Message)
			ours := string(event.InvolvedObject.UID) == v.UID // other pods may have the same trouble
			if !ours || event.Reason != reason || !strings.Contains(event.Message, text) {
				continue
			}
			if event.InvolvedObject.Kind != "Pod" || event.Type != corev1.EventTypeWarning || event.Count != 1 {
				return fmt.Errorf("event on %+v of type %s, %d times", event.InvolvedObject, event.Type, event.Count)
			}
			return nil
		}
		return fmt.Errorf("no event %s with %q among %q", reason, text, found)
	})
}
