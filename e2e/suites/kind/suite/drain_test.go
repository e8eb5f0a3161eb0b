package suite

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDrainWithSidecar: kubectl drain refuses a node with a labelled pod, because the sidecar's state is an emptyDir, and names the pod. With
// --delete-emptydir-data the pod moves to another node, and has its variables there. It runs with no other test, as other pods can't come
// to the node meanwhile.
func TestDrainWithSidecar(t *testing.T) {
	n := newNamespace(t)
	n.needsPolicies()
	n.createConfigMap("settings", object{"mode": "slow"})
	template := withVariable("web")
	template.Labels["app"] = n.name // the selector of kubectl drain is for the pods of all namespaces
	labels := map[string]string{"app": n.name}
	if _, err := n.client.AppsV1().Deployments(n.name).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := n.awaitOnly("app=" + n.name)
	node := first.Spec.NodeName
	t.Cleanup(func() { n.uncordon(node) })

	drain := []string{"drain", node, "--pod-selector=app=" + n.name, "--timeout=" + podTimeout.String()}
	err := kubectl(t.Context(), drain...)
	if err == nil || !containsAll(err.Error(), []string{"--delete-emptydir-data", n.name + "/" + first.Name}) {
		t.Errorf("drain without --delete-emptydir-data: %v", err)
	}
	if now := n.awaitOnly("app=" + n.name); now.UID != first.UID {
		t.Fatalf("the pod %s went, although the drain was refused", first.Name)
	}
	if err := kubectl(t.Context(), append(drain, "--delete-emptydir-data")...); err != nil {
		t.Fatal(err)
	}
	moved := n.awaitOnly("app=" + n.name)
	if moved.UID == first.UID || moved.Spec.NodeName == node {
		t.Fatalf("after the drain of %s: pod %s, which was %s, is on %s", node, moved.Name, first.Name, moved.Spec.NodeName)
	}
	if err := moved.hasVariables(t.Context(), map[string]string{"MODE": "slow"}); err != nil {
		t.Error(err)
	}
}

// awaitOnly waits until a single pod has the labels and is ready, and returns it.
func (n *namespace) awaitOnly(selector string) *pod {
	n.t.Helper()
	var only *pod
	eventually(n.t, podTimeout, "one pod with "+selector+" ready", func(ctx context.Context) error {
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].DeletionTimestamp != nil || !ready(&pods.Items[0]) {
			return fmt.Errorf("%d pods, or one that is not ready", len(pods.Items))
		}
		only = &pod{n, &pods.Items[0]}
		return nil
	})
	return only
}

// uncordon has a node take pods again, and waits until the taint is gone by which the control plane keeps them away.
func (n *namespace) uncordon(node string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := kubectl(ctx, "uncordon", node); err != nil {
		n.t.Error(err)
	}
	if err := poll(ctx, func(ctx context.Context) error {
		now, err := n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(now.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeUnschedulable }) {
			return fmt.Errorf("it has the taints %v", now.Spec.Taints)
		}
		return nil
	}); err != nil {
		n.t.Errorf("uncordon %s: %v", node, err)
	}
}
