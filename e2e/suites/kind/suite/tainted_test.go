package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node has the startup taint before the plugin comes there. A pod that doesn't tolerate the
// taint is not scheduled until the kubelet has registered the driver, and then its volume works
// at the first try.
func TestTaintedNode(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	useAllNodes(t)
	r := newRelease(t, "taint")
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	startupTaint := r.driver + "/agent-not-ready"
	n.taint(t, node, startupTaint)

	settings := refvol("settings", attributes{"configMap": "settings"})
	settings.CSI.Driver = r.driver
	spec := newPod("waiting", settings)
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

	registry, repository, tag := r.imageParts()
	out, err := r.helm(t.Context(), "install", "refvol", r.chart, "--set=startupTaint.enabled=true,identity=plugin,image.pullPolicy=IfNotPresent,"+
		"image.registry="+registry+",image.repository="+repository+",image.tag="+tag)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.awaitNoTaint(t, node, startupTaint, p)
	// The kubelet writes the CSINode before it confirms, so it can't lack the driver.
	csiNode, err := n.client.StorageV1().CSINodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == r.driver }) {
		t.Errorf("the driver is not listed: %v", csiNode.Spec.Drivers)
	}
	p.awaitReady()
	if got := p.failedMounts(); len(got) > 0 {
		t.Errorf("its volume didn't work at the first try: %q", got)
	}
	if err := p.hasText(t.Context(), "probe", mountDir+"settings/key", "text"); err != nil {
		t.Error(err)
	}
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
func (n *namespace) taint(t *testing.T, node, startupTaint string) {
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
func (n *namespace) awaitNoTaint(t *testing.T, node, startupTaint string, p *pod) {
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
