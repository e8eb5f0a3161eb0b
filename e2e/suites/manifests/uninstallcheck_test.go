package manifests

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestUninstallCheckOfEndedPods: a pod that has ended counts while its node's plugin is not ready, as it may still have a mount. A tenant's
// pod is no plugin, whatever its labels say.
func TestUninstallCheckOfEndedPods(t *testing.T) {
	pod := func(namespace, name string, phase corev1.PodPhase, ready corev1.ConditionStatus, volumes ...corev1.Volume) {
		t.Helper()
		pod := podWith(name, volumes...)
		pod.Namespace, pod.UID, pod.CreationTimestamp, pod.Spec.NodeName = namespace, uuid.NewUUID(), metav1.Now(), "crashing"
		pod.Labels = map[string]string{"app.kubernetes.io/name": "refvol-plugin"}
		pod.Status.Phase, pod.Status.Conditions = phase, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		if err := shared.PutPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := shared.DeletePod(context.WithoutCancel(t.Context()), namespace, name); err != nil {
				t.Error(err)
			}
		})
	}
	pod(pluginNamespace, "plugin", corev1.PodRunning, corev1.ConditionFalse)
	pod(consumer, "no-plugin", corev1.PodRunning, corev1.ConditionTrue)
	pod(consumer, "ended", corev1.PodSucceeded, corev1.ConditionFalse, inline(attributes{"configMap": "app"}))
	const says = "pod " + consumer + "/ended on node crashing, which has ended, and may have mounts there\n" +
		"Error: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out, status := uninstallCheck(t); status != 1 || !strings.HasPrefix(out, says) {
		t.Errorf("status %d, it says %q, want %q", status, out, says)
	}
}

// uninstallCheck runs the command as the cluster's admin, and returns what it wrote and its exit status.
func uninstallCheck(t *testing.T) (string, int) {
	t.Helper()
	stdout, stderr, status := harness.Run(t, shared.refvol, "uninstall-check", "--kubeconfig="+shared.Kubeconfig())
	return stdout + stderr, status
}
