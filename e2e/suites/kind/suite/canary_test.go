package suite

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

// canaryReplicas is how many pods the Deployment of TestCanaryObject has at first.
const canaryReplicas = 30

// canaried is a Deployment whose programs tell of each text of the ConfigMap settings, which has the canary settings-canary.
type canaried struct {
	*rolled
	replicas int32
}

func newCanaried(t *testing.T, share int) *canaried {
	t.Helper()
	c := &canaried{rolled: &rolled{namespace: newNamespace(t)}, replicas: canaryReplicas}
	c.createConfigMap("settings", object{"text": "first"})
	configMaps := c.client.CoreV1().ConfigMaps(c.name)
	second := configMap("settings-canary", object{"text": "second"})
	second.Annotations = map[string]string{volume.CanaryAnnotation: fmt.Sprint(share, "%")}
	if _, err := configMaps.Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	template := newPod("app", refvol("settings", attributes{"sources": "[{configMap: {name: settings}}, {configMap: {name: settings-canary, canary: true}}]"}))
	template.Spec.Containers[0].Args = []string{"obey", mountDir + "settings/text"}
	labels := map[string]string{"app": "canaried"}
	_, err := c.client.AppsV1().Deployments(c.name).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "app"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &c.replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patch changes the Deployment.
func (c *canaried) patch(change string) {
	c.t.Helper()
	if _, err := c.client.AppsV1().Deployments(c.name).Patch(c.t.Context(), "app", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// awaitTold waits until the Deployment has all its pods, ready, and each of them has told of nothing else than what want says, apart from
// repetitions by restarted containers. nil stands for anything that ends with "second".
func (c *canaried) awaitTold(what string, want func(place int) []string) {
	c.t.Helper()
	eventually(c.t, rolloutTimeout, what, func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods(c.name).List(ctx, metav1.ListOptions{LabelSelector: "app=canaried"})
		if err != nil {
			return err
		}
		if len(pods.Items) != int(c.replicas) {
			return fmt.Errorf("%d pods, want %d", len(pods.Items), c.replicas)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				return fmt.Errorf("%s on %s is not ready", p.Name, p.Spec.NodeName)
			}
			texts, err := c.told(ctx, p.Name)
			if err != nil {
				return err
			}
			if place := volume.RolloutPlace(p.UID); want(place) == nil && (len(texts) == 0 || texts[len(texts)-1] != "second") ||
				want(place) != nil && !slices.Equal(slices.Compact(texts), want(place)) {
				return fmt.Errorf("%s at place %d has told of %q, want %q", p.Name, place, texts, want(place))
			}
		}
		return nil
	})
}

// TestCanaryObject: a canary for a share of a Deployment's pods is in these and no others, through a rolling update, a scale-up, a deleted pod
// and a node that reboots. When its values become those of the stable object, no pod sees the old values for a moment. It runs with no other
// test, as it switches a node off.
func TestCanaryObject(t *testing.T) {
	const share = 20 // of 30 pods, one in a thousand runs has none
	c := newCanaried(t, share)
	byPlace := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first"}
	}
	c.awaitTold("the first pods", byPlace)
	c.patch(`{"spec":{"template":{"metadata":{"annotations":{"update":"1"}}}}}`)
	c.awaitTold("a rolling update", byPlace)
	c.replicas += 6
	c.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, c.replicas))
	c.awaitTold("a scale-up", byPlace)
	pods, err := c.client.CoreV1().Pods(c.name).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.client.CoreV1().Pods(c.name).Delete(t.Context(), pods.Items[0].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitTold("a deleted pod", byPlace)
	c.whileDown(t, c.worker(t), func() {})
	c.awaitTold("a reboot", byPlace)

	all := func(place int) []string {
		if place <= share {
			return []string{"second"}
		}
		return []string{"first", "second"}
	}
	c.patchConfigMap("settings-canary", `{"metadata":{"annotations":{"`+volume.CanaryAnnotation+`":"100%"}}}`)
	c.awaitTold("the canary for all", all)
	c.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	if r := kubectlRefvol(t, "converged", "configmap/settings", "-n", c.name); r.status != 0 {
		t.Fatalf("converged: status %d\n%s%s", r.status, r.stdout, r.stderr)
	}
	if err := c.client.CoreV1().ConfigMaps(c.name).Delete(t.Context(), "settings-canary", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.patchConfigMap("settings", `{"data":{"text":"third"}}`) // and so the pods have seen the end of the canary
	c.awaitTold("the end of the canary", func(place int) []string { return append(all(place), "third") })
}
