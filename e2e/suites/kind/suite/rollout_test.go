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

	"github.com/refvol/refvol/pkg/volume"
)

const (
	rolloutAnnotation = "refvol.dev/rollout"
	// rolloutTimeout is how long all pods may take to tell of a text, or to be ready again after a back-off.
	rolloutTimeout = 5 * time.Minute
	// rolledReplicas is how many pods a rolled Deployment has at first.
	rolledReplicas = 30
)

// rolled is a Deployment whose programs tell of each text of the ConfigMap settings, and fail at one that begins with bad.
type rolled struct {
	*namespace
	replicas int32
}

// newRolled makes the ConfigMap, other objects, and the pods with a volume of these attributes, and waits until all tell of the first text.
func newRolled(t *testing.T, a attributes, others func(*namespace)) *rolled {
	t.Helper()
	r := &rolled{namespace: newNamespace(t), replicas: rolledReplicas}
	r.setConfigMap("settings", object{"text": "first"})
	others(r.namespace)
	template := newPod("app", refvol("settings", a))
	template.Spec.Containers[0].Args = []string{"obey", mountDir + "settings/text"}
	r.deploy("app", r.replicas, template)
	r.awaitTold("the first text", always("first"))
	return r
}

// deploy creates a Deployment whose pods have the label app with its name.
func (n *namespace) deploy(name string, replicas int32, template *corev1.Pod) {
	n.t.Helper()
	selector := map[string]string{"app": name}
	labels := maps.Clone(selector)
	maps.Copy(labels, template.Labels)
	_, err := n.client.AppsV1().Deployments(n.name).Create(n.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
}

// deployed returns the pods of a Deployment, or an error unless there are just so many.
func (n *namespace) deployed(ctx context.Context, name string, replicas int32) ([]corev1.Pod, error) {
	pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err == nil && len(pods.Items) != int(replicas) {
		err = fmt.Errorf("%d pods, want %d", len(pods.Items), replicas)
	}
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// rollout runs the command for an object, and fails the test if its exit status is another.
func (r *rolled) rollout(status int, object string, args ...string) commandResult {
	r.t.Helper()
	result := kubectlRefvol(r.t, append([]string{"rollout", object, "-n", r.name}, args...)...)
	r.t.Logf("%q: status %d\n%s%s", args, result.status, result.stdout, result.stderr)
	if result.status != status {
		r.t.Fatalf("status %d, want %d", result.status, status)
	}
	return result
}

// told returns the texts that a pod has told of, by the logs of its container and of the one before that. They may be away for a moment. The
// kubelet removes that of the one before as soon as this one has ended, and answers with a sentence in its place until the next one starts.
func (r *rolled) told(ctx context.Context, p *corev1.Pod) ([]string, error) {
	var texts []string
	restarted := len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0
	for _, previous := range []bool{true, false} {
		if previous && !restarted {
			continue
		}
		h, err := r.history(ctx, p, previous)
		if err != nil && !previous {
			return nil, err
		}
		for _, one := range h.told {
			texts = append(texts, one.Text+one.Error)
		}
	}
	return texts, nil
}

// awaitAll waits until the Deployment has all its pods, ready, and what they have told of is right for their places. The logs may lag behind.
func (r *rolled) awaitAll(what string, isRight func(place int, texts []string) bool) {
	r.t.Helper()
	eventually(r.t, rolloutTimeout, what, func(ctx context.Context) error {
		pods, err := r.deployed(ctx, "app", r.replicas)
		if err != nil {
			return err
		}
		for i := range pods {
			p := &pods[i]
			if !ready(p) {
				return fmt.Errorf("%s on %s is not ready", p.Name, p.Spec.NodeName)
			}
			texts, err := r.told(ctx, p)
			if place := volume.RolloutPlace(p.UID); err != nil || !isRight(place, texts) {
				return errors.Join(err, fmt.Errorf("%s on %s at place %d has told of %q", p.Name, p.Spec.NodeName, place, texts))
			}
		}
		return nil
	})
}

// awaitTold waits until all pods have told of nothing else than what want says, apart from repetitions by restarted containers.
func (r *rolled) awaitTold(what string, want func(place int) []string) {
	r.t.Helper()
	r.awaitAll(what, func(place int, texts []string) bool { return slices.Equal(slices.Compact(texts), want(place)) })
}

// always wants the same texts at each place.
func always(texts ...string) func(int) []string { return func(int) []string { return texts } }

// awaitBad waits until a pod that said names has told of a bad text. No pod that has is above the share of the first step, which the command
// raises to the place of the first pod.
func (r *rolled) awaitBad(share int, said string) {
	r.t.Helper()
	eventually(r.t, podTimeout, "pods of the first step have told of the bad text", func(ctx context.Context) error {
		pods, err := r.deployed(ctx, "app", r.replicas)
		if err != nil {
			return err
		}
		named := false
		highest, lowest := 0, 100
		for i := range pods {
			texts, err := r.told(ctx, &pods[i])
			if err != nil {
				return err
			}
			place := volume.RolloutPlace(pods[i].UID)
			lowest = min(lowest, place)
			if slices.Contains(texts, "bad") {
				highest = max(highest, place)
				named = named || strings.Contains(said, "pod "+r.name+"/"+pods[i].Name+" ")
			}
		}
		if !named {
			return errors.New("no pod that the command names has")
		}
		if highest > max(share, lowest) {
			r.t.Fatalf("a pod at place %d has told of the bad text, and the first step is for %d, the first pod at place %d", highest, share, lowest)
		}
		return nil
	})
}

// testRollout: a good value reaches 30 pods of several nodes step by step. A bad one reaches the first of them, and no other. A revert takes two
// steps.
func testRollout(t *testing.T) {
	r := newRolled(t, attributes{"configMap": "settings"}, func(*namespace) {})
	const settings = "configmap/settings"
	holds := func(when string) {
		t.Helper()
		now, err := r.client.CoreV1().ConfigMaps(r.name).Get(t.Context(), "settings", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{rolloutAnnotation: "0%"}; !maps.Equal(now.Annotations, want) {
			t.Errorf("after the %s the annotations are %v, want %v", when, now.Annotations, want)
		}
	}
	r.rollout(0, settings, "--to=0%")
	r.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	r.awaitTold("the second text is held", always("first"))
	r.rollout(0, settings, "--steps=1,50%,100%", "--every=2s")
	r.awaitTold("the second text", always("first", "second"))
	holds("rollout")

	r.patchConfigMap("settings", `{"data":{"text":"bad"}}`)
	// A busy kubelet tells of a restart late, and the command ends once it has.
	result := r.rollout(1, settings, "--steps=1,50%,100%", "--every=5m")
	r.awaitBad(0, result.stdout+result.stderr)
	// The first of two steps: the pods of the share heal.
	r.patchConfigMap("settings", `{"data":{"text":"second"}}`)
	healed := func(_ int, texts []string) bool { return len(texts) > 0 && texts[len(texts)-1] == "second" }
	r.awaitAll("the first pods heal", healed)
	r.rollout(0, settings, "--to=100%", "--every=2s") // the second step
	holds("revert")
	r.awaitAll("all have the second text", healed)
}
