package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// runningStay: a pod that was there before the component, and one whose policies are gone.
func (s labels) runningStay(t *testing.T, old *corev1.Pod) {
	old.Labels = map[string]string{"changed": "yes"}
	got := must(shared.Client().CoreV1().Pods(old.Namespace).Update(t.Context(), old, metav1.UpdateOptions{}))(t)
	wantSameMounts(t, old, got)

	t.Cleanup(func() { s.remove(t) })
	live := must(shared.Client().CoreV1().Pods(s.live).Create(t.Context(), liveAtOnce(), metav1.CreateOptions{}))(t)
	const says = "pod %s/app on no node yet\nError: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out, status := uninstallCheck(t); status != 1 || !strings.HasPrefix(out, fmt.Sprintf(says, s.live)) {
		t.Errorf("uninstall-check: status %d, it says %q", status, out)
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding") {
		mustKubectl(t, command...)
	}
	s.awaitMount(t, "a")
	nothing := updatesOfLivePods()[0]
	wantRefusal(t, nothing.try(t, live))
	mustKubectl(t, "delete", "mutatingadmissionpolicybinding", "refvol-live-update")
	harness.Eventually(t, soon, func() error {
		if err := nothing.try(t, live); !apierrors.IsInvalid(err) {
			return fmt.Errorf("without the policy for updates: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
}

// TestUninstallCheckOfEndedPods: a pod that has ended counts while its node's plugin is not ready, as it may still have a mount. A tenant's
// pod is no plugin, whatever its labels say.
func TestUninstallCheckOfEndedPods(t *testing.T) {
	pod := func(namespace, name string, phase corev1.PodPhase, ready corev1.ConditionStatus, volumes ...corev1.Volume) {
		t.Helper()
		pod := podWith(name, volumes...)
		pod.Namespace, pod.UID, pod.CreationTimestamp, pod.Spec.NodeName = namespace, uuid.NewUUID(), metav1.Now(), "crashing"
		pod.Labels = map[string]string{"app.kubernetes.io/name": "refvol-plugin"}
		pod.Status.Phase, pod.Status.Conditions = phase, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		fatal(t, shared.PutPod(t.Context(), pod))
		t.Cleanup(func() {
			fatal(t, shared.DeletePod(context.WithoutCancel(t.Context()), namespace, name))
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

func uninstallCheck(t *testing.T) (string, int) {
	t.Helper()
	stdout, stderr, status := harness.Run(t, shared.refvol, "uninstall-check", "--kubeconfig="+shared.Kubeconfig())
	return stdout + stderr, status
}
