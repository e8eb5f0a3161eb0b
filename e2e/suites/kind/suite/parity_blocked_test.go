package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// blockedCase is a volume that lacks what it requires.
type blockedCase struct {
	name string
	view view
	// objects exist before the pods; late ones end the wait.
	objects, late []stored
	// reason is that of refvol's event, and texts are in the events of both.
	reason string
	texts  []string
}

func blockedCases() []blockedCase {
	single := func(s corev1.VolumeProjection) view { return view{sources: []corev1.VolumeProjection{s}} }
	var cases []blockedCase
	for _, kind := range []string{kindConfigMap, kindSecret} {
		missingKey := "references non-existent secret key: b"
		if kind == kindConfigMap {
			missingKey = "configmap references non-existent config key: b"
		}
		name := strings.ToLower(kind)
		cases = append(cases,
			blockedCase{
				name: name, view: single(source(kind, name)),
				late:   []stored{{kind, name, text("a", "1")}},
				reason: "RefNotFound", texts: []string{name + `" not found`},
			},
			blockedCase{
				name: name + "-key", view: single(source(kind, name+"-key", item("a", "a"), item("b", "dir/b"))),
				objects: []stored{{kind, name + "-key", text("a", "1")}},
				late:    []stored{{kind, name + "-key", text("a", "2", "b", "2")}},
				reason:  "RefKeyNotFound", texts: []string{missingKey},
			},
		)
	}
	return append(cases, blockedCase{
		name: "several",
		view: view{projected: true, sources: []corev1.VolumeProjection{
			source(kindConfigMap, "several-1"), source(kindSecret, "several-2"), optional(source(kindSecret, "several-3")),
		}},
		late:   []stored{{kindConfigMap, "several-1", text("a", "1")}, {kindSecret, "several-2", text("b", "1")}},
		reason: "RefNotFound", texts: []string{`several-1" not found`, `several-2" not found`},
	})
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

			began := time.Now()
			applyChanges(n, []parityCase{{changes: c.late}})
			refvol.awaitReady()
			unmounted.awaitReady()
			t.Logf("refvol's pods were ready %.1f s after that", time.Since(began).Seconds())
			native.awaitReady()
			t.Logf("the kubelet's, %.1f s", time.Since(began).Seconds())
			want := native.snapshots(t)["volume"]
			for _, p := range []*pod{refvol, unmounted} {
				for _, d := range compare(want, p.snapshots(t)["volume"]) {
					t.Errorf("pod %s: %s", p.Name, d)
				}
			}
		})
	}
}

// awaitWarning waits for an event of that reason on the pod whose message has all
// texts, and returns the message.
func (p *pod) awaitWarning(reason string, texts ...string) string {
	p.t.Helper()
	var message string
	eventually(p.t, podTimeout, fmt.Sprintf("event %s with %q", reason, texts), func(ctx context.Context) error {
		events, err := p.client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.name=" + p.Name,
		})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.Reason == reason && e.Type == corev1.EventTypeWarning && containsAll(e.Message, texts) {
				message = e.Message
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("events: %q", seen)
	})
	return message
}

func containsAll(line string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(line, word) {
			return false
		}
	}
	return true
}
