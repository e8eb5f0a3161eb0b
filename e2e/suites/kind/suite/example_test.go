package suite

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
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
		case *corev1.Namespace: // the test's takes its place
		case *corev1.Pod:
			pod = o
			pod.Namespace = n.name
		case *corev1.ServiceAccount:
			o.Namespace = n.name
			_, err = core.ServiceAccounts(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		case *corev1.ConfigMap:
			o.Namespace = n.name
			_, err = core.ConfigMaps(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
		case *corev1.Secret:
			o.Namespace = n.name
			_, err = core.Secrets(n.name).Create(n.t.Context(), o, metav1.CreateOptions{})
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

// The example of pod identity works with its grants, and not without them. Only what no
// cluster of the tests has is replaced: the image, and the driver by that of the second
// plugin.
func TestPodIdentityExample(t *testing.T) {
	t.Parallel()
	n := newNamespace(t)
	spec := n.createExample(example(t, "pod-identity.yaml"))
	container := &spec.Spec.Containers[0]
	probe := newContainer("probe", nil)
	container.Name, container.Image, container.ImagePullPolicy = probe.Name, probe.Image, probe.ImagePullPolicy
	container.Command, container.Args = nil, probe.Args
	spec.Spec.Volumes[0].CSI.Driver = podIdentityDriver
	at := container.VolumeMounts[0].MountPath
	p := n.start(spec)
	for path, text := range map[string]string{"password": "change-me", "app.yaml": "listen: \":8443\"\n"} {
		if err := p.hasText(t.Context(), probe.Name, at+"/"+path, text); err != nil {
			t.Error(err)
		}
	}
	p.delete()

	stranger := spec.DeepCopy()
	stranger.Name, stranger.Spec.ServiceAccountName = "stranger", "default"
	if message := n.create(stranger).awaitEvent("may not get, list and watch"); !strings.Contains(message, n.name+"/settings") {
		t.Errorf("the event of a pod without grants: %s", message)
	}
}
