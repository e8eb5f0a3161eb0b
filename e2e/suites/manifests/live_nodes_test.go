package manifests

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// selectNodes: with one component more a pod that was made live has a node selector more, and no other pod has.
func (s labels) selectNodes(t *testing.T) {
	const policy, key = "mutatingadmissionpolicy/refvol-live-node-selector", "refvol.dev/plugin"
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, "live", "live-node-selector", "restart"))
	native := func(patch string) *corev1.Pod {
		return merged(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), patch)
	}
	with, both := map[string]string{key: "true"}, map[string]string{key: "true", "disk": "ssd"}
	cases := map[string]struct {
		namespace string
		pod       *corev1.Pod
		want      map[string]string
	}{
		"live":                                {s.live, native(""), with},
		"a selector of its own":               {s.live, native("spec: {nodeSelector: {disk: ssd}}"), both},
		"another value":                       {s.live, native("spec: {nodeSelector: {refvol.dev/plugin: 'no'}}"), map[string]string{key: "no"}},
		"no volume":                           {s.live, mounting(nil), nil},
		"subPath alone":                       {s.live, mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a:key"), nil},
		"the author's own":                    {s.live, mounting([]corev1.Volume{ofConfigMap("a"), showing("mine", attributes{"volume": "a"})}, "mine:/a"), nil},
		"the author's own with a native name": {s.live, podWith("own", showing("refvol-own", attributes{"configMap": "app"})), nil},
		"another namespace":                   {s.plain, native(""), nil},
		"a DaemonSet's":                       {s.live, native("metadata: {ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: '1'}]}"), nil},
		"on a node":                           {s.live, native("spec: {nodeName: node}"), nil},
	}
	wrong := func(name string) error {
		c := cases[name]
		pod, err := createdIn(t.Context(), c.namespace, c.pod.DeepCopy())
		if err == nil && !maps.Equal(pod.Spec.NodeSelector, c.want) {
			err = fmt.Errorf("%s: the node selector is %v, want %v", name, pod.Spec.NodeSelector, c.want)
		}
		return err
	}
	harness.Eventually(t, soon, func() error { return wrong("live") })
	for name := range cases {
		if err := wrong(name); err != nil {
			t.Error(err)
		}
	}
	// At each change the API server brings the policies into another order.
	for turn := range harness.Scaled(4, 20) {
		mustKubectl(t, "annotate", "--overwrite", policy, fmt.Sprintf("turn=%d", turn))
		for range 10 {
			fatal(t, wrong("live"))
		}
	}

	t.Cleanup(func() { s.remove(t) })
	manifest := strings.Replace(liveManifest, "spec:\n", "spec:\n  nodeSelector: {disk: ssd}\n", 1)
	apply := func() error {
		_, err := shared.kubectlWith(t.Context(), []byte(manifest), "apply", "--filename=-", "--server-side", "--namespace="+s.live)
		return err
	}
	for range 2 {
		fatal(t, apply())
	}
	pod, err := shared.Client().CoreV1().Pods(s.live).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil || !maps.Equal(pod.Spec.NodeSelector, both) {
		t.Errorf("applied again it has %v, %v, want %v", pod.Spec.NodeSelector, err, both)
	}
	mustKubectl(t, "delete", strings.Replace(policy, "/", "binding/", 1))
	harness.Eventually(t, soon, func() error {
		if apply() == nil {
			return errors.New("the policy is in force still")
		}
		return nil
	})
}
