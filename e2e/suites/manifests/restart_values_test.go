package manifests

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestRestartValues: the first variables of the policy are what the chart's values and kustomize replace.
func TestRestartValues(t *testing.T) {
	s := newRestartSuite(t)
	s.enforce(t)
	policies := shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	policy, err := policies.Get(t.Context(), "refvol-restart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{
		"image": "'example.com/notify:v9'", "pullPolicy": "'Always'", "pullSecrets": "['one', 'two']", "user": "1234", "port": "9811",
		"usualResources": `{"requests": {"memory": "64Mi"}}`,
	}
	for i := range policy.Spec.Variables {
		if v := &policy.Spec.Variables[i]; values[v.Name] != "" {
			v.Expression = values[v.Name]
			delete(values, v.Name)
		}
	}
	if len(values) > 0 {
		t.Fatalf("the policy has no variables %v", values)
	}
	if _, err := policies.Update(t.Context(), policy, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := withEnv(secretKey("db", "password"))
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}, {Name: "two"}}
	var got *corev1.Pod
	harness.Eventually(t, soon, func() error {
		if got, err = createdIn(t.Context(), s.restart, pod.DeepCopy()); err == nil && got.Spec.InitContainers[0].Image != "example.com/notify:v9" {
			err = errors.New("the old values are in force")
		}
		return err
	})
	c := &got.Spec.InitContainers[0]
	if c.ImagePullPolicy != corev1.PullAlways || *c.SecurityContext.RunAsUser != 1234 ||
		c.Resources.Requests.Memory().String() != "64Mi" || len(c.Resources.Limits) > 0 {
		t.Errorf("the sidecar is\n%s", asYAML(c))
	}
	for name, change := range map[string]func(*corev1.PodSpec){
		"":                        func(*corev1.PodSpec) {},
		"the network of the node": func(spec *corev1.PodSpec) { spec.HostNetwork = true },
		"the port is declared": func(spec *corev1.PodSpec) {
			spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 9811}}
		},
	} {
		with := pod.DeepCopy()
		change(&with.Spec)
		got, err := createdIn(t.Context(), s.restart, with)
		if err != nil {
			t.Fatal(err)
		}
		c := &got.Spec.InitContainers[0]
		if serves := slices.Contains(c.Args, "--http=:9811") && len(c.Ports) == 1 && c.Ports[0].Name == notify && c.Ports[0].ContainerPort == 9811; serves != (name == "") {
			t.Errorf("%q: the sidecar has the arguments %q and the ports %v", name, c.Args, c.Ports)
		}
	}
	want := []corev1.LocalObjectReference{{Name: "own"}, {Name: "two"}, {Name: "one"}}
	if !slices.Equal(got.Spec.ImagePullSecrets, want) {
		t.Errorf("pull secrets %v, want %v", got.Spec.ImagePullSecrets, want)
	}
	bare, err := createdIn(t.Context(), s.restart, withEnv(secretKey("db", "password")))
	if err != nil {
		t.Fatal(err)
	}
	if want := []corev1.LocalObjectReference{{Name: "one"}, {Name: "two"}}; !slices.Equal(bare.Spec.ImagePullSecrets, want) {
		t.Errorf("pull secrets of a pod without any: %v, want %v", bare.Spec.ImagePullSecrets, want)
	}
}
