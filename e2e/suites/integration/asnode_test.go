package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// otherNode is a node that no plugin of these tests is on.
const otherNode = "node-2"

// asNodeRules returns the rights of a plugin that reads as its node, as the manifests have them.
func asNodeRules(t *testing.T, components ...string) []rbacv1.PolicyRule {
	t.Helper()
	rules, err := harness.Rules(t.Context(), append([]string{"node-identity"}, components...)...)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// newAsNode starts a plugin that reads with the rights of its node.
func newAsNode(t *testing.T, args ...string) *node {
	t.Helper()
	_, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
	return newNodeAs(t, kubeconfig, append([]string{"--identity=node"}, args...)...)
}

// pluginPod makes an account with rules, a pod of it on a node, and a kubeconfig with a token that
// is bound to the pod.
func pluginPod(t *testing.T, nodeName string, rules []rbacv1.PolicyRule) (pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	name := uniqueName("plugin")
	newAccount(t, name, rules)
	pod = schedule(t, shared.ControlPlane, pluginNamespace, corev1.PodSpec{ServiceAccountName: name, NodeName: nodeName})
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	bindToken(t, shared.ControlPlane, pod, kubeconfig)
	return pod, kubeconfig
}

// bindToken writes a kubeconfig with a token of a pod.
func bindToken(t *testing.T, c *controlplane.ControlPlane, pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	token, err := c.PodToken(t.Context(), pod, time.Hour)
	if err == nil {
		err = c.WriteKubeconfig(kubeconfig, token)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// schedule makes a pod as one that was scheduled, by default to the plugins' node and of the
// account "default". It ends with the test.
func schedule(t *testing.T, c *controlplane.ControlPlane, namespace string, spec corev1.PodSpec) *corev1.Pod {
	t.Helper()
	if spec.ServiceAccountName == "" {
		spec.ServiceAccountName = "default"
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := c.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	if spec.NodeName == "" {
		spec.NodeName = harness.NodeName
	}
	if len(spec.Containers) == 0 {
		spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	}
	automount := false
	spec.AutomountServiceAccountToken = &automount
	pods := c.Client().CoreV1().Pods(namespace)
	var pod *corev1.Pod
	harness.Eventually(t, soon, func() (err error) { // the API server hears of the account by a watch
		pod, err = pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"}, Spec: spec}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		if err := deletePod(context.WithoutCancel(t.Context()), c, pod); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return pod
}

// deletePod removes a pod at once, as the kubelet does at its end.
func deletePod(ctx context.Context, c *controlplane.ControlPlane, pod *corev1.Pod) error {
	now := int64(0)
	return c.Client().CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

// shownBy returns the driver's volume of the attributes, of a new pod with a spec.
func shownBy(t *testing.T, c *controlplane.ControlPlane, namespace string, spec corev1.PodSpec, attributes map[string]string) *harness.Volume {
	t.Helper()
	v := harness.NewVolume(namespace, "", attributes)
	readOnly := true
	spec.Volumes = append(slices.Clone(spec.Volumes), corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: harness.DriverName, ReadOnly: &readOnly, VolumeAttributes: attributes},
	}})
	pod := schedule(t, c, namespace, spec)
	v.Pod, v.UID = pod.Name, string(pod.UID)
	v.Unknown = true // the API server knows the pod, and its authorizer reads a pod's spec once
	return v
}

// native returns a spec with one volume "native" that nobody mounts.
func native(source corev1.VolumeSource) corev1.PodSpec {
	return corev1.PodSpec{Volumes: []corev1.Volume{{Name: "native", VolumeSource: source}}}
}

func nativeSecret(name string) corev1.PodSpec {
	return native(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}})
}

// nativeBoth names a ConfigMap and a Secret by an unmounted projected volume.
func nativeBoth(configMap, secret string) corev1.PodSpec {
	return native(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}},
	}}})
}

// volumeSource shows the pod's own volume "native".
func volumeSource() map[string]string { return map[string]string{"volume": "native"} }

// directly shows an object of a kind by its name.
func directly(kind, name string) map[string]string {
	return map[string]string{map[string]string{"secret": "secret", "configmap": "configMap"}[kind]: name}
}

// nodeUser is whom the plugins of these tests impersonate.
func nodeUser(name string) string { return fmt.Sprintf("system:node:%s", name) }
