package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// liveNamespace makes a namespace whose new pods are changed, or leaves the test out where the API server
// can't change them.
func liveNamespace(t *testing.T) *namespace {
	t.Helper()
	n := newNamespace(t)
	n.makeLive()
	return n
}

// makeLive puts the label on the namespace, and waits until new pods are changed.
func (n *namespace) makeLive() {
	n.t.Helper()
	n.needsPolicies()
	n.label("refvol.dev/live")
	n.awaitLive(nodeIdentityDriver, true)
}

// awaitLive waits until new pods are changed to a driver, or are not: the API server hears of its policies by a watch.
func (n *namespace) awaitLive(driver string, want bool) {
	n.t.Helper()
	eventually(n.t, podTimeout, fmt.Sprintf("pods are changed: %t", want), func(ctx context.Context) error {
		dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
		pod, err := n.client.CoreV1().Pods(n.name).Create(ctx, newPod("sentinel", native("settings", "settings")), dryRun)
		if err != nil {
			return err
		}
		if err := live(pod, driver); (err == nil) != want {
			return fmt.Errorf("%+v, %w", pod.Spec.Volumes, err)
		}
		return nil
	})
}

// needsPolicies leaves the test out where the API server has no policies that change pods.
func (n *namespace) needsPolicies() {
	n.t.Helper()
	_, err := n.client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(n.t.Context(), "refvol-live", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		n.t.Skip("left out: the API server lacks the policies of live namespaces, which need Kubernetes 1.36")
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// label gives the namespace a label that is true.
func (n *namespace) label(key string) {
	n.t.Helper()
	label := fmt.Appendf(nil, `{"metadata": {"labels": {%q: "true"}}}`, key)
	if _, err := n.client.CoreV1().Namespaces().Patch(n.t.Context(), n.name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// live returns an error if a container of the pod mounts a native volume in place of the driver's.
func live(pod *corev1.Pod, driver string) error {
	shown := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.CSI != nil && v.CSI.Driver == driver {
			shown[v.Name] = v.CSI.VolumeAttributes["volume"]
		}
	}
	for _, c := range pod.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if !strings.HasPrefix(m.MountPath, mountDir) {
				continue
			}
			if want := strings.TrimPrefix(m.MountPath, mountDir); shown[m.Name] != want {
				return fmt.Errorf("pod %s mounts %s at %s", pod.Name, m.Name, m.MountPath)
			}
		}
	}
	return nil
}
