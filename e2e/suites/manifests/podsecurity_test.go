package manifests

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// dryRun has the API server judge an object, and keep nothing.
func dryRun() metav1.CreateOptions {
	return metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
}

// daemonSet returns that of the base.
func daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(mustKubectl(t, "kustomize", filepath.Join(shared.deploy, "base"))), 4096)
	for {
		var found appsv1.DaemonSet
		if err := documents.Decode(&found); err != nil {
			t.Fatalf("no DaemonSet: %v", err)
		}
		if found.Kind == "DaemonSet" {
			return &found
		}
	}
}

// TestPodBreaksTheBaselineInTwoWaysOnly has Kubernetes' own judge of pod security list
// what is out of the ordinary about the plugin's pod.
func TestPodBreaksTheBaselineInTwoWaysOnly(t *testing.T) {
	core := shared.Client().CoreV1()
	held, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "held-to-baseline-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	makeAccount(t, held.Name, pluginAccount)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plugin"}, Spec: daemonSet(t).Spec.Template.Spec}
	_, err = core.Pods(held.Name).Create(t.Context(), pod, dryRun())
	wantRefusal(t, err, `violates PodSecurity "baseline:latest": `+
		`hostPath volumes (volumes "pods", "plugin", "registration"), `+
		`privileged (container "refvol-plugin" must not set securityContext.privileged=true)`)
	if err != nil && strings.Count(err.Error(), "),") != 1 {
		t.Errorf("more than two violations: %v", err)
	}
}

// makeAccount makes a service account, which pods of a namespace need.
func makeAccount(t *testing.T, namespace, name string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := shared.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// wantRefusal wants an error with all of the texts; none if there is no text.
func wantRefusal(t *testing.T, err error, texts ...string) {
	t.Helper()
	if len(texts) == 0 && err != nil {
		t.Errorf("refused: %v", err)
	}
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want a refusal with %q", err, text)
		}
	}
}
