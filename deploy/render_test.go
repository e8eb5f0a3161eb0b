package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/refvol/refvol/internal/must"
)

// render builds the kustomization in dir as `kubectl apply -k dir` would, and
// decodes what comes out.
func render(t *testing.T, dir string) []runtime.Object {
	t.Helper()
	manifests, err := build(dir)
	if err != nil {
		t.Fatalf("build %s: %v", dir, err)
	}
	return decode(t, dir, manifests)
}

func build(dir string) ([]byte, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return resources.AsYaml()
}

// rendered has the manifests of sets of components, by their names: kustomize takes long.
var rendered = map[string][]byte{}

func renderWith(t *testing.T, components []string) []runtime.Object {
	t.Helper()
	name := strings.Join(components, " ")
	if rendered[name] == nil {
		manifests, err := build(kustomization(t, components, ""))
		if err != nil {
			t.Fatalf("build the base with %q: %v", components, err)
		}
		rendered[name] = manifests
	}
	return decode(t, name, rendered[name])
}

// kustomization writes one as users do, with the base, components, and more lines. It returns the
// directory.
func kustomization(t *testing.T, components []string, lines string) string {
	t.Helper()
	// The renderer takes links away before it looks for what is below.
	top := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	// Kustomize refuses absolute paths.
	root := must.Get(filepath.Rel(top, must.Get(filepath.Abs("."))(t)))(t)
	var paths []string
	for _, name := range components {
		paths = append(paths, filepath.Join(root, "components", name))
	}
	text := fmt.Sprintf("resources: [%s]\ncomponents: [%s]\n%s", filepath.Join(root, "base"), strings.Join(paths, ", "), lines)
	must.Do(t, os.WriteFile(filepath.Join(top, "kustomization.yaml"), []byte(text), 0o600))
	return top
}

// decoder refuses a field that the type doesn't have, or one that is given twice, and a kind that nothing here installs.
var decoder = sync.OnceValue(func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, flowcontrolv1.AddToScheme,
		monitoringv1.AddToScheme, networkingv1.AddToScheme, rbacv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
})

func decode(t *testing.T, name string, stream []byte) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		must.Do(t, err)
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		object, _, err := decoder().Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%s: decode %q: %v", name, document, err)
		}
		objects = append(objects, object)
	}
}

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
