package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// render builds the kustomization in dir as `kubectl apply -k dir` would, and
// decodes what comes out.
func render(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("build %s: %v", dir, err)
	}
	manifests, err := resources.AsYaml()
	if err != nil {
		t.Fatalf("build %s: %v", dir, err)
	}
	return decode(t, dir, manifests)
}

// renderOverlay renders the base with the lines of kustomization on top.
func renderOverlay(t *testing.T, kustomization string) []runtime.Object {
	t.Helper()
	return renderOn(t, "base", func(string) string { return kustomization })
}

// renderWith renders what is in dir with components on top.
func renderWith(t *testing.T, dir string, components []string) []runtime.Object {
	t.Helper()
	return renderOn(t, dir, func(root string) string {
		var paths []string
		for _, name := range components {
			paths = append(paths, filepath.Join(root, "components", name))
		}
		return "components: [" + strings.Join(paths, ", ") + "]\n"
	})
}

// renderOn renders what is in dir with a kustomization on top, which is told where deploy/ is.
func renderOn(t *testing.T, dir string, kustomization func(root string) string) []runtime.Object {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	// The renderer takes links away before it looks for what is below.
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// Kustomize refuses absolute paths.
	if root, err = filepath.Rel(top, root); err != nil {
		t.Fatal(err)
	}
	text := "resources: [" + filepath.Join(root, dir) + "]\n" + kustomization(root)
	if err := os.WriteFile(filepath.Join(top, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return render(t, top)
}

// decode reads a stream of YAML documents into typed objects. A field that the
// type doesn't have, or one that is given twice, ends the test, as does a kind
// that nothing here installs.
func decode(t *testing.T, name string, stream []byte) []runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, flowcontrolv1.AddToScheme,
		rbacv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()

	var objects []runtime.Object
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(stream)))
	defer documents.Close()
	buffer := make([]byte, len(stream))
	for {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: decode %q: %v", name, buffer[:n], err)
		}
		objects = append(objects, object)
	}
}

// only returns the one object of type T.
func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, object := range objects {
		if typed, ok := object.(T); ok {
			found = append(found, typed)
		}
	}
	if len(found) != 1 {
		t.Fatalf("found %d objects of type %T, want 1", len(found), *new(T))
	}
	return found[0]
}
