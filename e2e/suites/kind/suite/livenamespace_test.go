package suite

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// liveNamespace makes a namespace whose new pods are changed, or leaves the test out where the API server
// can't change them.
func liveNamespace(t *testing.T) *namespace {
	t.Helper()
	n := newNamespace(t)
	n.needsPolicies()
	n.kubectl("label", "namespace", n.name, "refvol.dev/live=true")
	n.awaitLive(nodeIdentityDriver, true)
	return n
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
		if err := isLive(pod, driver, "settings"); (err == nil) != want {
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
	must.Do(n.t, err)
}

// isLive returns an error unless the driver shows the volume of a pod, and its containers mount that.
func isLive(p *corev1.Pod, driver, name string) error {
	if !slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.CSI != nil && v.CSI.Driver == driver && v.CSI.VolumeAttributes["volume"] == name
	}) {
		return fmt.Errorf("pod %s has no live volume of %s", p.Name, name)
	}
	for _, c := range p.Spec.Containers {
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name }) {
			return fmt.Errorf("container %s of pod %s mounts %s itself", c.Name, p.Name, name)
		}
	}
	return nil
}
