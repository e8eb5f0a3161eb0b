package integration

import (
	"bytes"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestPodThatDoesNotTell restarts the plugin under volumes of whose pods the API server does not
// tell what was asked for. They stay as they are until the kubelet's next call.
func TestPodThatDoesNotTell(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		// change changes the pod, which is given back as nil if it is to be deleted.
		change func(pod *corev1.Pod) *corev1.Pod
	}{
		{"deleted", func(*corev1.Pod) *corev1.Pod { return nil }},
		{"mirror of a static pod", func(pod *corev1.Pod) *corev1.Pod { pod.UID = uuid.NewUUID(); return pod }},
		{"made again", func(pod *corev1.Pod) *corev1.Pod {
			pod.UID = uuid.NewUUID()
			pod.Spec.Volumes[0].CSI.VolumeAttributes = map[string]string{"configMap": "other"}
			return pod
		}},
		{"no such volume", func(pod *corev1.Pod) *corev1.Pod { pod.Spec.Volumes[0].Name = "another"; return pod }},
		{"volume of another driver", func(pod *corev1.Pod) *corev1.Pod { pod.Spec.Volumes[0].CSI.Driver = "csi.example.org"; return pod }},
		{"volume that is refused", func(pod *corev1.Pod) *corev1.Pod {
			pod.Spec.Volumes[0].CSI.VolumeAttributes["noSuchAttribute"] = "x"
			return pod
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			before := n.canary()
			n.configMap("app", map[string]string{"key": before})
			n.configMap("other", map[string]string{"key": n.canary()})
			hurt, ends, well := n.short("app"), n.short("app"), n.short("app")
			for _, v := range []*harness.Volume{hurt, ends, well} {
				n.mustPublish(v)
			}
			n.mustKill()
			for _, v := range []*harness.Volume{hurt, ends} {
				n.changePod(v, tc.change)
			}
			n.mustStart()
			after := n.canary()
			n.configMap("app", map[string]string{"key": after})
			n.arrives(well, "key", after, afterRestart)
			for _, v := range []*harness.Volume{hurt, ends} {
				n.waitsForKubelet(v)
				n.wantContent(v, "key", before)
			}
			n.mustPublish(hurt) // which brings the request itself
			n.arrives(hurt, "key", after, afterRestart)
			n.wantContent(ends, "key", before)
			for _, v := range []*harness.Volume{hurt, ends, well} {
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// changePod changes the pod of a volume at the API server.
func (n *node) changePod(v *harness.Volume, change func(*corev1.Pod) *corev1.Pod) {
	n.t.Helper()
	pod, err := shared.Pod(n.t.Context(), v.Namespace, v.Pod)
	if err != nil || pod == nil {
		n.t.Fatalf("pod of volume %s: %v, %v", v.ID(), pod, err)
	}
	if pod = change(pod); pod == nil {
		n.forgetPod(v)
		return
	}
	if err := shared.PutPod(n.t.Context(), pod); err != nil {
		n.t.Fatal(err)
	}
}

// waitsForKubelet waits until the plugin has said that it leaves a volume to the kubelet.
func (n *node) waitsForKubelet(v *harness.Volume) {
	n.t.Helper()
	harness.Eventually(n.t, afterRestart, func() error {
		for line := range bytes.Lines(n.log()) {
			waits := bytes.Contains(line, []byte("until the kubelet publishes it again")) || bytes.Contains(line, []byte("Volume does not show what it should"))
			if waits && bytes.Contains(line, []byte(v.ID())) {
				return nil
			}
		}
		return errors.New("the plugin has not said why the volume is not updated")
	})
}
