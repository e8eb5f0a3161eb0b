package suite

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// patch changes the Deployment.
func (r *rolled) patch(change string) {
	r.t.Helper()
	deployments := r.client.AppsV1().Deployments(r.name)
	if _, err := deployments.Patch(r.t.Context(), "app", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// rollsBackABadCanary has the command give the pods a bad canary, which it takes back. No pod above the share of the first step sees it.
func (r *rolled) rollsBackABadCanary() {
	r.t.Helper()
	r.patchConfigMap("settings-canary", `{"data":{"text":"bad"}}`)
	// A busy kubelet tells of a restart late, and the command ends once it has.
	result := r.rollout(1, "configmap/settings-canary", "--steps=10%,50%,100%", "--every=5m")
	if !strings.Contains(result.stdout+result.stderr, "are unhealthy:") {
		r.t.Error("the command does not say that pods are unhealthy")
	}
	taken, err := r.client.CoreV1().ConfigMaps(r.name).Get(r.t.Context(), "settings-canary", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	if share := taken.Annotations[volume.CanaryAnnotation]; share != "0%" {
		r.t.Errorf("the share of the canary is %q", share)
	}
	r.awaitBad(10)
}

// TestCanaryObject: a bad canary is taken back at once by the command. A good one for a share of a Deployment's pods is in these and no others,
// through a rolling update, a scale-up, a deleted pod and a node that reboots. When its values become those of the stable object, no pod sees
// the old values for a moment. It runs with no other test, as it switches a node off, and the command looks at all nodes.
func TestCanaryObject(t *testing.T) {
	const share = 20 // of 30 pods, one in a thousand runs has none
	r := newRolled(t)
	second := contents{text: object{"text": "second"}}.configMap("settings-canary")
	second.Annotations = map[string]string{volume.CanaryAnnotation: "0%"}
	if _, err := r.client.CoreV1().ConfigMaps(r.name).Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.starts(attributes{"sources": "[{configMap: {name: settings}}, {configMap: {name: settings-canary, canary: true}}]"})
	r.awaitTold("no pod sees the canary", always("first"))
	r.rollsBackABadCanary()
	r.patchConfigMap("settings-canary",
		fmt.Sprintf(`{"metadata":{"annotations":{%q:"%d%%"}},"data":{"text":"second"}}`, volume.CanaryAnnotation, share))
	byPlace := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first"}
	}
	r.patch(`{"spec":{"template":{"metadata":{"annotations":{"update":"1"}}}}}`)
	r.awaitTold("a rolling update", byPlace)
	r.replicas += 6
	r.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, r.replicas))
	r.awaitTold("a scale-up", byPlace)
	pods, err := r.deployed(t.Context(), "app", r.replicas)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.CoreV1().Pods(r.name).Delete(t.Context(), pods[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.awaitTold("a deleted pod", byPlace)
	r.whileDown(t, r.workers(t)[0], func() {})
	r.awaitTold("a reboot", byPlace)

	promoted := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first", "second"}
	}
	r.patchConfigMap("settings-canary", `{"metadata":{"annotations":{"`+volume.CanaryAnnotation+`":"100%"}}}`)
	r.awaitTold("the canary for all", promoted)
	r.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	if result := kubectlRefvol(t, "converged", "configmap/settings", "-n", r.name); result.status != 0 {
		t.Fatalf("converged: status %d\n%s%s", result.status, result.stdout, result.stderr)
	}
	if err := r.client.CoreV1().ConfigMaps(r.name).Delete(t.Context(), "settings-canary", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.patchConfigMap("settings", `{"data":{"text":"third"}}`) // and so the pods have seen the end of the canary
	r.awaitTold("the end of the canary", func(place int) []string { return append(promoted(place), "third") })
}
