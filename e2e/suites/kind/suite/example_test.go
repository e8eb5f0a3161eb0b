package suite

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// example decodes the objects of one of deploy/examples, which the suite's directory has
// above it.
func example(t *testing.T, name string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile("../../../../deploy/examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// createExample creates the objects of an example in the test's namespace instead of the
// example's own, and returns its pod, not created yet.
func (n *namespace) createExample(objects []runtime.Object) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	for _, object := range objects {
		var err error
		core, rbac := n.client.CoreV1(), n.client.RbacV1()
		switch o := object.(type) {
		case *corev1.Pod:
			pod = o
			pod.Namespace = n.name
		case *corev1.ServiceAccount:
			o.Namespace = n.name
			_, err = core.ServiceAccounts(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		case *corev1.ConfigMap:
			o.Namespace = n.name
			_, err = core.ConfigMaps(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.Role:
			o.Namespace = n.name
			_, err = rbac.Roles(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		case *rbacv1.RoleBinding:
			o.Namespace = n.name
			for i := range o.Subjects {
				o.Subjects[i].Namespace = n.name
			}
			_, err = rbac.RoleBindings(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		default:
			n.t.Fatalf("the example has a %T", object)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	if pod == nil {
		n.t.Fatal("the example has no pod")
	}
	return pod
}
