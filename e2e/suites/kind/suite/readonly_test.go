package suite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// Nobody writes to a volume, not even root in a container whose volumeMount asks for
// a writable one.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	n.wantReadOnly(refvol("settings", attributes{"configMap": "settings"}))
}

// Where the policy sets csi.readOnly, a pod without it starts, and its volume is read-only.
func TestReadOnlyIsSetByAPolicy(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.needsKubernetes(t, "1.36", "MutatingAdmissionPolicy in v1")
	n.createConfigMap("settings", object{"key": "text"})
	volume := refvol("settings", attributes{"configMap": "settings"})
	volume.CSI.ReadOnly = nil
	n.setReadOnly(t, newPod("sentinel", volume))
	n.wantReadOnly(volume)
}

// wantReadOnly starts a pod with a volume whose key has the value text, and tries to write there.
func (n *namespace) wantReadOnly(volume corev1.Volume) {
	t := n.t
	t.Helper()
	volumes := []corev1.Volume{volume}
	spec := newPod("writer", volumes...)
	// As root, who is refused by the file system alone.
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	spec.Spec.Containers = nil
	for name, readOnly := range map[string]bool{"writable": false, "readonly": true} {
		c := newContainer(name, volumes)
		c.VolumeMounts[0].ReadOnly = readOnly
		spec.Spec.Containers = append(spec.Spec.Containers, c)
	}
	p := n.start(spec)
	for _, c := range spec.Spec.Containers {
		for _, file := range []string{"key", "..data/key", "new"} {
			got, err := p.ask(t.Context(), c.Name, "write", mountDir+"settings/"+file, "changed")
			if err != nil {
				t.Fatal(err)
			}
			if got != "EROFS\n" {
				t.Errorf("container %s writes %s: %q", c.Name, file, got)
			}
		}
		if err := p.hasText(t.Context(), c.Name, mountDir+"settings/key", "text"); err != nil {
			t.Error(err)
		}
	}
}

// setReadOnly installs the policy of deploy/components/admission-read-only for this namespace only,
// until the end of the test, and waits until it is in force for a pod.
func (n *namespace) setReadOnly(t *testing.T, sentinel *corev1.Pod) {
	t.Helper()
	api := n.client.AdmissionregistrationV1()
	policy, binding := &admissionv1.MutatingAdmissionPolicy{}, &admissionv1.MutatingAdmissionPolicyBinding{}
	readComponent(t, "policy.yaml", policy)
	readComponent(t, "binding.yaml", binding)
	binding.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{
		MatchLabels: map[string]string{corev1.LabelMetadataName: n.name},
	}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		err := errors.Join(
			api.MutatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}),
			api.MutatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
	if _, err := api.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, podTimeout, "policy in force", func(ctx context.Context) error {
		got, err := n.client.CoreV1().Pods(n.name).Create(ctx, sentinel, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && got.Spec.Volumes[0].CSI.ReadOnly == nil {
			err = errors.New("readOnly is not set")
		}
		return err
	})
}

// readComponent reads an object of the component with the policy.
func readComponent(t *testing.T, name string, into any) {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "components", "admission-read-only", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatal(err)
	}
}

// A volume that isn't declared read-only is refused, and the pod's event says what to
// set.
func TestReadOnlyMustBeSet(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "text"})
	for name, readOnly := range map[string]*bool{"unset": nil, "false": new(false)} {
		volume := refvol("settings", attributes{"configMap": "settings"})
		volume.CSI.ReadOnly = readOnly
		p := n.create(newPod(name, volume))
		t.Logf("readOnly %s: %s", name, p.awaitEvent("readOnly: Required value: must be true"))
		p.awaitEvent("csi.readOnly: true")
		if got := p.phase(t); got != corev1.PodPending {
			t.Errorf("readOnly %s: the pod is %s", name, got)
		}
	}
}
