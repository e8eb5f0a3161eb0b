package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// blockedCase is a volume that lacks what it requires until its changes.
type blockedCase struct {
	parityCase
	// reason is that of refvol's event, and texts are in the events of both.
	reason string
	texts  []string
}

func blockedCases() []blockedCase {
	var cases []blockedCase
	for kind, missingKey := range map[string]string{
		kindConfigMap: "configmap references non-existent config key: b", kindSecret: "references non-existent secret key: b",
	} {
		name := strings.ToLower(kind)
		lacksKey := changing(kind, name+"-key", text("a", "1"), text("a", "2", "b", "2")).by(item("a", "a"), item("b", "dir/b"))
		cases = append(cases,
			blockedCase{changing(kind, name, nil, text("a", "1")), "RefNotFound", []string{name + `" not found`}},
			blockedCase{lacksKey, "RefKeyNotFound", []string{missingKey}})
	}
	return append(cases, blockedCase{parityCase{
		name: "several",
		view: view{projected: true, sources: []corev1.VolumeProjection{
			source(kindConfigMap, "several-1"), source(kindSecret, "several-2"), optional(source(kindSecret, "several-3")),
		}},
		changes: []stored{{kindConfigMap, "several-1", text("a", "1")}, {kindSecret, "several-2", text("b", "1")}},
	}, "RefNotFound", []string{`several-1" not found`, `several-2" not found`}})
}

// A pod waits for an object or a key that it requires, says so in an event that names
// all that is missing, and starts when all is there; with either maker's volume, also if that
// shows a volume of the pod which nobody mounts. All then show the same.
func TestParityOfBlockedPods(t *testing.T) {
	t.Parallel()
	for _, c := range blockedCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t)
			for _, o := range c.objects {
				n.put(o.kind, o.name, *o.contents)
			}
			native := n.create(newPod("native", c.view.native("volume")))
			refvol := n.create(newPod("refvol", c.view.refvol(t, "volume")))
			native.awaitWarning("FailedMount", c.texts...)
			t.Logf("refvol: %s", refvol.awaitWarning(c.reason, c.texts...))
			unmounted := n.create(withUnmounted(newPod("unmounted", asNode("volume", "shown")), c.view.native("shown")))
			t.Logf("refvol by a volume source: %s", unmounted.awaitWarning(c.reason, c.texts...))
			for _, p := range []*pod{native, refvol, unmounted} {
				if got := p.phase(t); got != corev1.PodPending {
					t.Fatalf("pod %s is %s", p.Name, got)
				}
			}

			applyChanges(n, []parityCase{c.parityCase})
			awaitReady(native, refvol, unmounted)
			want := native.snapshots(t)["volume"]
			for _, p := range []*pod{refvol, unmounted} {
				for _, d := range compare(want, p.snapshots(t)["volume"]) {
					t.Errorf("pod %s: %s", p.Name, d)
				}
			}
		})
	}
}

// warnings returns the events on the pod that are warnings.
func (p *pod) warnings() []corev1.Event {
	p.t.Helper()
	warnings := metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name + ",type=Warning"}
	return must.Get(p.client.CoreV1().Events(p.Namespace).List(p.t.Context(), warnings))(p.t).Items
}

// awaitWarning waits for an event of that reason on the pod whose message has all
// texts, and returns the message.
func (p *pod) awaitWarning(reason string, texts ...string) (message string) {
	p.t.Helper()
	eventually(p.t, podTimeout, fmt.Sprintf("event %s with %q", reason, texts), func(context.Context) error {
		var seen []string
		for _, e := range p.warnings() {
			if message = e.Message; e.Reason == reason && containsAll(message, texts) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events: %q", seen)
	})
	return message
}

func containsAll(line string, words []string) bool {
	return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
}
