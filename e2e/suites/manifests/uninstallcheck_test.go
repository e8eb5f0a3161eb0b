package manifests

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestUninstallCheckOfEndedPods: a pod that has ended counts while its node's plugin is not ready, as it may still have a mount. A tenant's pod
// is no plugin, whatever its labels say.
func TestUninstallCheckOfEndedPods(t *testing.T) {
	put := func(namespace, name, node string, change func(*corev1.Pod)) {
		t.Helper()
		pod := podWith(name)
		pod.Namespace, pod.UID, pod.CreationTimestamp, pod.Spec.NodeName = namespace, uuid.NewUUID(), metav1.Now(), node
		change(pod)
		if err := shared.PutPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := shared.DeletePod(context.WithoutCancel(t.Context()), namespace, name); err != nil {
				t.Error(err)
			}
		})
	}
	plugin := func(namespace, node string, ready corev1.ConditionStatus) {
		put(namespace, "plugin-on-"+node, node, func(pod *corev1.Pod) {
			pod.Labels = map[string]string{"app.kubernetes.io/name": "refvol-plugin"}
			pod.Status.Phase, pod.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		})
	}
	plugin(pluginNamespace, "crashing", corev1.ConditionFalse)
	plugin(consumer, "crashing", corev1.ConditionTrue)
	put(consumer, "ended", "crashing", func(pod *corev1.Pod) {
		pod.Spec.Volumes, pod.Status.Phase = []corev1.Volume{inline(attributes{"configMap": "app"})}, corev1.PodSucceeded
	})
	const says = "pod " + consumer + "/ended on node crashing, which has ended, and may have mounts there\n" +
		"Error: uninstall-check: pods that use the driver csi.refvol.dev: 1: delete them first, because without the plugin they stay in Terminating; switch live namespaces off before (docs/live-namespaces.md)\n"
	if out, status := uninstallCheck(t); status != 1 || out != says {
		t.Errorf("status %d, it says %q, want %q", status, out, says)
	}
}

// uninstallCheck runs the command as the cluster's admin, and returns what it wrote and its exit status.
func uninstallCheck(t *testing.T) (string, int) {
	t.Helper()
	stdout, stderr, status := harness.Run(t, shared.refvol, "uninstall-check", "--kubeconfig="+shared.Kubeconfig())
	return stdout + stderr, status
}
