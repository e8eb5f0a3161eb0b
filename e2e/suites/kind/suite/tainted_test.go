package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// startupTaint is what the component has the plugin remove.
const startupTaint = driver + "/agent-not-ready"

// A node has the startup taint when the plugin starts there. A pod that doesn't tolerate
// the taint is not scheduled until the kubelet has registered the driver, and then its
// volume works at the first try.
func TestTaintedNode(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	n.installStartupTaint(t, node)
	letBack := n.keepPluginAway(t, node)
	n.awaitNoDriver(t, node)
	n.taint(t, node)

	spec := newPod("waiting", refvol("settings", attributes{"configMap": "settings"}))
	spec.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	spec.Spec.Tolerations = []corev1.Toleration{{Key: controlPlaneTaint, Operator: corev1.TolerationOpExists}}
	p := n.create(spec)
	eventually(t, podTimeout, "pod that can't be scheduled", func(ctx context.Context) error {
		now, err := n.client.CoreV1().Pods(n.name).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "untolerated taint") {
				t.Log(c.Message)
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", now.Status.Conditions)
	})

	letBack()
	n.awaitNoTaint(t, node, p)
	// The kubelet writes the CSINode before it confirms, so it can't lack the driver.
	if listed, err := n.listsDriver(t.Context(), node); err != nil || !listed {
		t.Errorf("the driver is listed: %t, %v", listed, err)
	}
	p.awaitReady()
	if got := p.failedMounts(); len(got) > 0 {
		t.Errorf("its volume didn't work at the first try: %q", got)
	}
	if err := p.hasText(t.Context(), "probe", mountDir+"settings/key", "text"); err != nil {
		t.Error(err)
	}
	n.wantLoggedInOrder(t, node, "Kubelet registered the driver", "Removed the startup taint")
}

// failedMounts returns what the events say of volumes of the pod that the kubelet failed
// to set up.
func (p *pod) failedMounts() []string {
	p.t.Helper()
	events, err := p.client.CoreV1().Events(p.Namespace).List(p.t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + string(p.UID) + ",reason=FailedMount",
	})
	if err != nil {
		p.t.Fatal(err)
	}
	var messages []string
	for _, e := range events.Items {
		messages = append(messages, e.Message)
	}
	return messages
}

// taint puts the startup taint on the node, behind those that it has, until the test
// ends.
func (n *namespace) taint(t *testing.T, node string) {
	t.Helper()
	nodes := n.client.CoreV1().Nodes()
	change := func(ctx context.Context, change func([]corev1.Taint) []corev1.Taint) error {
		return poll(ctx, func(ctx context.Context) error {
			object, err := nodes.Get(ctx, node, metav1.GetOptions{})
			if err != nil {
				return err
			}
			object.Spec.Taints = change(object.Spec.Taints)
			_, err = nodes.Update(ctx, object, metav1.UpdateOptions{})
			return err
		})
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		err := change(ctx, func(taints []corev1.Taint) []corev1.Taint {
			return slices.DeleteFunc(taints, func(t corev1.Taint) bool { return t.Key == startupTaint })
		})
		if err != nil {
			t.Error(err)
		}
	})
	err := change(t.Context(), func(taints []corev1.Taint) []corev1.Taint {
		return append(taints, corev1.Taint{Key: startupTaint, Effect: corev1.TaintEffectNoSchedule})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitNoTaint waits until the node has lost the startup taint and no other one, and
// checks that the pod is not scheduled before.
func (n *namespace) awaitNoTaint(t *testing.T, node string, p *pod) {
	t.Helper()
	eventually(t, podTimeout, "node without the startup taint", func(ctx context.Context) error {
		// The pod first: if it has a node then, the taint must be gone already.
		now, err := n.client.CoreV1().Pods(n.name).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		object, err := n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		others := false
		for _, taint := range object.Spec.Taints {
			if taint.Key == startupTaint {
				if now.Spec.NodeName != "" {
					t.Error("the pod was scheduled while the node had the taint")
				}
				return errors.New("it is still there")
			}
			others = others || taint.Key == controlPlaneTaint
		}
		if !others {
			t.Errorf("the node's own taint is gone, too: %v", object.Spec.Taints)
		}
		return nil
	})
}

// awaitNoDriver waits until the CSINode does not list the driver. The plugin's pod goes before
// the kubelet notices that its socket has gone.
func (n *namespace) awaitNoDriver(t *testing.T, node string) {
	t.Helper()
	eventually(t, podTimeout, "driver not listed", func(ctx context.Context) error {
		if listed, err := n.listsDriver(ctx, node); err != nil || listed {
			return fmt.Errorf("listed: %t, %v", listed, err)
		}
		return nil
	})
}

// listsDriver tells whether the CSINode lists the driver now.
func (n *namespace) listsDriver(ctx context.Context, node string) (bool, error) {
	csiNode, err := n.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver }), nil
}

// wantLoggedInOrder checks that the plugin of the node logged each of these once, in
// this order.
func (n *namespace) wantLoggedInOrder(t *testing.T, node string, texts ...string) {
	t.Helper()
	raw, err := n.client.CoreV1().Pods(pluginNamespace).GetLogs(n.mustPlugin(t, node).Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	log, at := string(raw), -1
	for _, text := range texts {
		next := strings.Index(log, text)
		if strings.Count(log, text) != 1 || next < at {
			t.Errorf("the plugin did not log %q once and in this order:\n%s", texts, log)
			return
		}
		at = next
	}
}

// installStartupTaint changes the plugin of one node, until the test ends, as the
// component says: its policy, its rights and its flags. The plugins of other nodes stay as they are.
func (n *namespace) installStartupTaint(t *testing.T, node string) {
	t.Helper()
	daemonSets, roles := n.client.AppsV1().DaemonSets(pluginNamespace), n.client.RbacV1().ClusterRoles()
	daemonSet, err := daemonSets.Get(t.Context(), pluginProgram, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role, err := roles.Get(t.Context(), pluginProgram, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.uninstallStartupTaint(t, node, daemonSet, role) })
	n.installTaintPolicy(t)
	if _, err := roles.Patch(t.Context(), role.Name, types.JSONPatchType, rightsPatch(t, "startup-taint"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.patchDaemonSet(t.Context(), strategyPath, appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}); err != nil {
		t.Fatal(err)
	}
	if _, err := daemonSets.Patch(t.Context(), daemonSet.Name, types.JSONPatchType, daemonSetPatch(t, "startup-taint"), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// installTaintPolicy installs the component's policy until the test ends.
func (n *namespace) installTaintPolicy(t *testing.T) {
	t.Helper()
	const dir = "components/startup-taint/"
	api := n.client.AdmissionregistrationV1()
	policy := manifest(t, dir+"policy.yaml", func(admissionv1.ValidatingAdmissionPolicy) bool { return true })
	binding := manifest(t, dir+"binding.yaml", func(admissionv1.ValidatingAdmissionPolicyBinding) bool { return true })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := errors.Join(
			api.ValidatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			api.ValidatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// uninstallStartupTaint brings back the plugin that was there before.
func (n *namespace) uninstallStartupTaint(t *testing.T, node string, daemonSet *appsv1.DaemonSet, role *rbacv1.ClusterRole) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	// Each step is made whatever became of those before: other tests use the plugin, too.
	tookBack := func(what string, err error) {
		if err != nil {
			t.Errorf("take back the plugin's %s: %v", what, err)
		}
	}
	tookBack("flags", n.patchDaemonSet(ctx, "/spec/template/spec/containers/0/args", daemonSet.Spec.Template.Spec.Containers[0].Args))
	rules, err := replacement("/rules", role.Rules)
	if err == nil {
		_, err = n.client.RbacV1().ClusterRoles().Patch(ctx, role.Name, types.JSONPatchType, rules, metav1.PatchOptions{})
	}
	tookBack("rights", err)
	// Only this node's plugin has another template than the one that is back.
	tookBack("strategy", n.patchDaemonSet(ctx, strategyPath, daemonSet.Spec.UpdateStrategy))
	err = poll(ctx, func(ctx context.Context) error {
		plugin, err := n.plugin(ctx, node)
		if err != nil || plugin == nil || !ready(plugin) || plugin.DeletionTimestamp != nil {
			return errors.Join(err, errors.New("no plugin is ready"))
		}
		if strings.Contains(strings.Join(plugin.Spec.Containers[0].Args, " "), "--startup-taint") {
			return errors.New("it still has the flag")
		}
		return nil
	})
	if err != nil {
		t.Errorf("the plugin as it was before: %v", err)
	}
}

// strategyPath is where a DaemonSet says how it replaces pods.
const strategyPath = "/spec/updateStrategy"

// patchDaemonSet replaces what the plugin's DaemonSet has at a path.
func (n *namespace) patchDaemonSet(ctx context.Context, path string, value any) error {
	patch, err := replacement(path, value)
	if err != nil {
		return err
	}
	_, err = n.client.AppsV1().DaemonSets(pluginNamespace).Patch(ctx, pluginProgram, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

// replacement returns the JSON patch that replaces what is at a path.
func replacement(path string, value any) ([]byte, error) {
	return json.Marshal([]map[string]any{{"op": "replace", "path": path, "value": value}})
}
