package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A plugin whose mounts would not reach the node is not ready, although the kubelet has
// registered it, and says what to set.
func TestPluginWithoutMountPropagation(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.removeMountPropagation(t, node)
	deletePlugin(t, n, nil, n.mustPlugin(t, node))
	var plugin *corev1.Pod
	eventually(t, podTimeout, "plugin that says why it is not ready", func(ctx context.Context) error {
		var err error
		if plugin, err = n.plugin(ctx, node); err != nil || plugin == nil {
			return errors.Join(err, errors.New("there is no plugin"))
		}
		return errors.Join(n.logged(ctx, plugin,
			"Not ready: pods would get empty directories", "mountPropagation: Bidirectional", "Kubelet registered the driver"),
			n.failedReadiness(ctx, plugin))
	})
	now, err := n.client.CoreV1().Pods(pluginNamespace).Get(t.Context(), plugin.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ready(now) {
		t.Error("the plugin is ready")
	}
}

// logged returns nil if the plugin's log has all these texts.
func (n *namespace) logged(ctx context.Context, plugin *corev1.Pod, texts ...string) error {
	log, err := n.client.CoreV1().Pods(pluginNamespace).GetLogs(plugin.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if !strings.Contains(string(log), text) {
			return fmt.Errorf("no %q in the log:\n%s", text, log)
		}
	}
	return nil
}

// failedReadiness returns nil if the kubelet has told that the plugin answered its readiness
// probe with 503.
func (n *namespace) failedReadiness(ctx context.Context, plugin *corev1.Pod) error {
	events, err := n.client.CoreV1().Events(pluginNamespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(plugin.UID) + ",reason=Unhealthy",
	})
	if err != nil {
		return err
	}
	var messages []string
	for _, e := range events.Items {
		if strings.HasPrefix(e.Message, "Readiness probe failed") && strings.Contains(e.Message, "503") {
			return nil
		}
		messages = append(messages, e.Message)
	}
	return fmt.Errorf("no failed readiness probe among %q", messages)
}

// removeMountPropagation changes the plugin's DaemonSet until the test ends. Only a plugin
// that starts meanwhile has the change.
func (n *namespace) removeMountPropagation(t *testing.T, node string) {
	t.Helper()
	daemonSet, err := n.client.AppsV1().DaemonSets(pluginNamespace).Get(t.Context(), pluginProgram, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const mountsPath = "/spec/template/spec/containers/0/volumeMounts"
	before := daemonSet.Spec.Template.Spec.Containers[0].VolumeMounts
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := n.patchDaemonSet(ctx, mountsPath, before); err != nil {
			t.Errorf("take back the plugin's mounts: %v", err)
		}
		// Only this node's plugin has another template than the one that is back.
		if err := n.patchDaemonSet(ctx, strategyPath, daemonSet.Spec.UpdateStrategy); err != nil {
			t.Errorf("take back the plugin's strategy: %v", err)
		}
		n.awaitPlugin(ctx, t, node)
	})
	if err := n.patchDaemonSet(t.Context(), strategyPath, appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}); err != nil {
		t.Fatal(err)
	}
	without := slices.Clone(before)
	found := false
	for i := range without {
		found = found || without[i].MountPropagation != nil
		without[i].MountPropagation = nil
	}
	if !found {
		t.Fatal("the DaemonSet sets no propagation")
	}
	if err := n.patchDaemonSet(t.Context(), mountsPath, without); err != nil {
		t.Fatal(err)
	}
}
