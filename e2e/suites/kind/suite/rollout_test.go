package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/probe/clock"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	rolloutAnnotation = "refvol.dev/rollout"
	// rolloutTimeout is how long all pods may take to have a text, or to be ready again after a back-off.
	rolloutTimeout = 5 * time.Minute
	// deployReplicas is how many pods each Deployment has.
	deployReplicas = 30
	// rolloutFile has the text. The programs fail at one that begins with bad.
	rolloutFile = mountDir + "settings/text"
)

// deploy creates a Deployment whose pods have the label app with its name.
func (n *namespace) deploy(name string, template *corev1.Pod) {
	n.t.Helper()
	selector := map[string]string{"app": name}
	labels := maps.Clone(selector)
	maps.Copy(labels, template.Labels)
	_, err := n.client.AppsV1().Deployments(n.name).Create(n.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(deployReplicas)), Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	must.Do(n.t, err)
}

// deployed returns the pods of a Deployment, or an error unless there are all, and no others.
func (n *namespace) deployed(ctx context.Context, name string) ([]corev1.Pod, error) {
	pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err == nil && len(pods.Items) != deployReplicas {
		err = fmt.Errorf("%d pods, want %d", len(pods.Items), deployReplicas)
	}
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// rollout runs the command for a ConfigMap, and fails the test if its exit status is another. It returns what the command printed.
func (n *namespace) rollout(status int, configMap string, args ...string) string {
	n.t.Helper()
	stdout, stderr, got := kubectlRefvol(n.t, append([]string{"rollout", "configmap/" + configMap, "-n", n.name}, args...)...)
	n.t.Logf("%s %q: status %d\n%s%s", configMap, args, got, stdout, stderr)
	if got != status {
		n.t.Fatalf("status %d, want %d", got, status)
	}
	return stdout + stderr
}

// awaitRolled waits until the Deployment has all its pods, ready, with the text.
func (n *namespace) awaitRolled(text string) {
	n.t.Helper()
	eventually(n.t, rolloutTimeout, "all pods have the text "+text, func(ctx context.Context) error {
		pods, err := n.deployed(ctx, "app")
		for i := range pods {
			if !ready(&pods[i]) {
				return fmt.Errorf("%s on %s is not ready", pods[i].Name, pods[i].Spec.NodeName)
			}
			if err := (&pod{n, &pods[i]}).hasText(ctx, "probe", rolloutFile, text); err != nil {
				return err
			}
		}
		return err
	})
}

// wereHeld wants each pod that has not restarted to have read the first text, and the other one only after a time.
func (n *namespace) wereHeld(text string, began time.Duration) {
	n.t.Helper()
	pods, held := must.Get(n.deployed(n.t.Context(), "app"))(n.t), 0
	for i := range pods {
		if pods[i].Status.ContainerStatuses[0].RestartCount > 0 {
			continue
		}
		p := &pod{n, &pods[i]}
		h := p.awaitHistory(text, func(h history) bool { return h.has(text, rolloutFile) })
		if len(h) != 2 || h[0].Text != "first" || h[1].At < began {
			n.t.Errorf("%s has read %+v, want first, and %s after %s", p.Name, h, text, began)
		}
		held++
	}
	if held == 0 {
		n.t.Error("all pods have restarted")
	}
}

// awaitBad waits until a pod that said names has failed at the bad text. No pod above the lowest place of all has. It returns this place.
func (n *namespace) awaitBad(said string) (lowest int) {
	n.t.Helper()
	eventually(n.t, podTimeout, "pods of the first step have failed", func(ctx context.Context) error {
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		named, highest := false, 0
		lowest = 100
		for _, p := range pods.Items {
			place := volume.RolloutPlace(p.UID)
			lowest = min(lowest, place)
			if slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.RestartCount > 0 }) {
				highest = max(highest, place)
				named = named || strings.Contains(said, "pod "+n.name+"/"+p.Name+" ")
			}
		}
		if !named {
			return errors.New("no pod that the command names has")
		}
		if highest > lowest {
			n.t.Fatalf("a pod at place %d has failed, and the first pod is at place %d", highest, lowest)
		}
		return nil
	})
	return lowest
}

// testRollout: a good value reaches 30 pods of several nodes step by step. A bad one reaches the first of them, and no other. A revert takes two
// steps.
func testRollout(t *testing.T) {
	n := newNamespace(t)
	n.setConfigMap("settings", object{"text": "first"})
	template := newPod("app", refvol("settings", attributes{"configMap": "settings"}))
	template.Spec.Containers[0].Args = []string{"obey", rolloutFile}
	n.deploy("app", template)
	n.awaitRolled("first")
	holds := func(when string) {
		t.Helper()
		now := must.Get(n.client.CoreV1().ConfigMaps(n.name).Get(t.Context(), "settings", metav1.GetOptions{}))(t)
		if want := map[string]string{rolloutAnnotation: "0%"}; !maps.Equal(now.Annotations, want) {
			t.Errorf("after the %s the annotations are %v, want %v", when, now.Annotations, want)
		}
	}
	n.rollout(0, "settings", "--to=0%")
	n.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	n.awaitRolled("first")
	began := must.Get(clock.Now())(t)
	n.rollout(0, "settings", "--steps=1,50%,100%", "--every=2s")
	n.awaitRolled("second")
	n.wereHeld("second", began)
	holds("rollout")

	n.patchConfigMap("settings", `{"data":{"text":"bad"}}`)
	// A busy kubelet tells of a restart late, and the command ends once it has.
	n.awaitBad(n.rollout(1, "settings", "--steps=1,50%,100%", "--every=5m"))
	// The first of two steps: the pods of the share heal.
	n.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	n.awaitRolled("second")
	n.rollout(0, "settings", "--to=100%", "--every=2s") // the second step
	holds("revert")
	n.awaitRolled("second")
}
