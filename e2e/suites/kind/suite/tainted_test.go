package suite

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// A node has the startup taint before the plugin comes there. A pod that doesn't tolerate the
// taint is not scheduled until the kubelet has registered the driver, and then its volume works
// at the first try.
func TestTaintedNode(t *testing.T) {
	t.Parallel()
	node := shareNode(t)
	s := newInstaller(t, "taint")
	n := s.pods
	n.setConfigMap("settings", object{"key": "text"})
	startupTaint := s.driver + "/agent-not-ready"
	must.Do(t, kubectl(t.Context(), "taint", "node", node, startupTaint+":NoSchedule"))
	t.Cleanup(func() {
		err := kubectl(context.WithoutCancel(t.Context()), "taint", "node", node, startupTaint+"-")
		if err != nil && !strings.Contains(err.Error(), "not found") { // the plugin has removed it
			t.Error(err)
		}
	})

	spec := newPod("waiting", ofDriver(s.driver, "settings", attributes{"configMap": "settings"}))
	spec.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	spec.Spec.Tolerations = []corev1.Toleration{{Key: controlPlaneTaint, Operator: corev1.TolerationOpExists}}
	p := n.create(spec)
	t.Log(p.awaitWarning("FailedScheduling", "untolerated taint"))

	s.output("helm install refvol deploy/charts/refvol --set image.registry=registry.example.com,image.tag=v0.1.0," +
		"image.pullPolicy=IfNotPresent,startupTaint.enabled=true,identity=plugin --namespace refvol-system")
	eventually(t, podTimeout, "node without the startup taint", func(ctx context.Context) error {
		// The taints first: the driver must be listed before the taint goes.
		now, err := n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		csiNode, err := n.client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		has := func(key string) bool {
			return slices.ContainsFunc(now.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
		}
		if !has(controlPlaneTaint) || !has(startupTaint) && !isListed(csiNode, s.driver) {
			t.Fatalf("the node has the taints %v, and the drivers %v", now.Spec.Taints, csiNode.Spec.Drivers)
		}
		if has(startupTaint) {
			return errors.New("it is still there")
		}
		return nil
	})
	p.awaitReady()
	if got := p.failedMounts(); len(got) > 0 {
		t.Errorf("its volume didn't work at the first try: %q", got)
	}
	p.wantText(mountDir+"settings/key", "text")
}

// isListed tells whether a node's kubelet has registered the driver.
func isListed(node *storagev1.CSINode, driver string) bool {
	return slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

// failedMounts returns what the events say of volumes of the pod that the kubelet failed
// to set up.
func (p *pod) failedMounts() (messages []string) {
	p.t.Helper()
	for _, e := range p.warnings() {
		if e.Reason == "FailedMount" {
			messages = append(messages, e.Message)
		}
	}
	return messages
}
