package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

// testCanary: a bad canary is taken back at once by the command, and no pod above the share of the first step sees it. A good one for a share
// of a Deployment's pods is in these and no others, through a rolling update, a scale-up and a deleted pod. When its values become those of
// the stable object, no pod sees the old values for a moment.
func testCanary(t *testing.T) {
	const share = 20 // of 30 pods, one in a thousand runs has none
	const sources = "[{configMap: {name: settings}}, {configMap: {name: settings-canary, canary: true}}]"
	r := newRolled(t, attributes{"sources": sources}, func(n *namespace) {
		none := object{volume.CanaryAnnotation: "0%"}
		n.put(kindConfigMap, "settings-canary", contents{text: object{"text": "second"}, annotations: none})
	})
	r.patchConfigMap("settings-canary", `{"data":{"text":"bad"}}`)
	// A busy kubelet tells of a restart late, and the command ends once it has.
	result := r.rollout(1, "configmap/settings-canary", "--steps=10%,50%,100%", "--every=5m")
	if !strings.Contains(result.stdout+result.stderr, "are unhealthy:") {
		t.Error("the command does not say that pods are unhealthy")
	}
	taken, err := r.client.CoreV1().ConfigMaps(r.name).Get(t.Context(), "settings-canary", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if share := taken.Annotations[volume.CanaryAnnotation]; share != "0%" {
		t.Errorf("the share of the canary is %q", share)
	}
	r.awaitBad(10, result.stdout+result.stderr)
	r.patchConfigMap("settings-canary",
		fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d%%"}},"data":{"text":"second"}}`, volume.CanaryAnnotation, share))
	byPlace := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first"}
	}
	r.kubectl("patch", "deployment", "app", "--patch="+`{"spec":{"template":{"metadata":{"annotations":{"update":"1"}}}}}`)
	r.awaitTold("a rolling update", byPlace)
	r.replicas += 6
	r.kubectl("patch", "deployment", "app", "--patch="+fmt.Sprintf(`{"spec":{"replicas":%d}}`, r.replicas))
	r.awaitTold("a scale-up", byPlace)
	pods, err := r.deployed(t.Context(), "app", r.replicas)
	if err != nil {
		t.Fatal(err)
	}
	(&pod{r.namespace, &pods[0]}).beginDelete()
	eventually(t, podTimeout, "another pod in the place of the deleted one", func(ctx context.Context) error {
		now, err := r.deployed(ctx, "app", r.replicas)
		if err == nil && slices.ContainsFunc(now, func(p corev1.Pod) bool { return p.Name == pods[0].Name }) {
			err = errors.New("the deleted one is there")
		}
		return err
	})
	r.awaitTold("a deleted pod", byPlace)

	promoted := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first", "second"}
	}
	r.patchConfigMap("settings-canary", `{"metadata":{"annotations":{"`+volume.CanaryAnnotation+`":"100%"}}}`)
	r.awaitTold("the canary for all", promoted)
	r.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	if result := kubectlRefvol(t, "converged", "configmap/settings", "-n", r.name, "--timeout=10m"); result.status != 0 {
		t.Fatalf("converged: status %d\n%s%s", result.status, result.stdout, result.stderr)
	}
	r.drop(kindConfigMap, "settings-canary")
	r.patchConfigMap("settings", `{"data":{"text":"third"}}`) // and so the pods have seen the end of the canary
	r.awaitTold("the end of the canary", func(place int) []string { return append(promoted(place), "third") })
}
