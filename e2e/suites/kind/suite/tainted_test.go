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
	n.setConfigMap("settings", object{"key": "text"})
	startupTaint := r.driver + "/agent-not-ready"
	if err := kubectl(t.Context(), "taint", "node", node, startupTaint+":NoSchedule"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := kubectl(context.WithoutCancel(t.Context()), "taint", "node", node, startupTaint+"-")
		if err != nil && !strings.Contains(err.Error(), "not found") { // the plugin has removed it
			t.Error(err)
		}
	})

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
	if err := r.helm(t.Context(), "install", "refvol", r.chart, "--set=startupTaint.enabled=true,identity=plugin,image.pullPolicy=IfNotPresent,"+
		"image.registry="+registry+",image.repository="+repository+",image.tag="+tag); err != nil {
		t.Fatal(err)
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
