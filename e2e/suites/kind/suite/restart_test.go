package suite

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// onlyOneMount checks that the node itself has the volume mounted once.
func onlyOneMount(t *testing.T, inspector *pod, id string) {
	t.Helper()
	found, err := inspector.mounts(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, m := range found {
		if m.PID == 1 {
			count++
		}
	}
	if count != 1 {
		t.Errorf("the node has %d mounts of %s: %+v", count, id, found)
	}
}

// deletePlugin deletes the plugin's pod and waits until it is gone.
func deletePlugin(t *testing.T, n *namespace, plugin *corev1.Pod) {
	t.Helper()
	n.searchBefore(t, plugin)
	err := n.client.CoreV1().Pods(plugin.Namespace).Delete(t.Context(), plugin.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	(&pod{n, plugin}).awaitGone(t)
}
