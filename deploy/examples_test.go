package deploy

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// exampleNamespace is where a reader is assumed to apply the examples.
const exampleNamespace = "default"

func TestExamples(t *testing.T) {
	files, err := filepath.Glob("examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d examples, error %v", len(files), err)
	}
	readme, err := os.ReadFile("examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			manifests, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(readme), "`"+filepath.Base(file)+"`") {
				t.Error("examples/README.md does not name it")
			}
			if !strings.HasPrefix(string(manifests), "# ") {
				t.Error("must start with a comment that says what it shows")
			}
			objects := decode(t, file, manifests)
			if filepath.Base(file) == "gate.yaml" {
				return // it is about volumes that others have; the kind suite runs it
			}
			pod := only[*corev1.Pod](t, objects)
			checkImages(t, pod.Spec)
			checkVolumes(t, pod, payloadObjects(t, objects))
			checkConsent(t, pod, objects)
		})
	}
}

// TestGateInTwoNamespaces: the gate for another namespace, made as its comment says, replaces nothing of the first one's.
func TestGateInTwoNamespaces(t *testing.T) {
	text, err := os.ReadFile("examples/gate.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const other = "billing"
	seen := map[string]bool{}
	for _, namespace := range []string{"shop", other} {
		for _, object := range decode(t, "gate.yaml", bytes.ReplaceAll(text, []byte("shop"), []byte(namespace))) {
			accessor, err := meta.Accessor(object)
			if err != nil {
				t.Fatal(err)
			}
			key := object.GetObjectKind().GroupVersionKind().Kind + " " + accessor.GetNamespace() + "/" + accessor.GetName()
			if seen[key] {
				t.Errorf("%s is in both", key)
			}
			seen[key] = true
		}
	}
}

// checkImages wants images that every cluster can pull, at a version.
func checkImages(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	for _, container := range spec.Containers {
		if !strings.HasPrefix(container.Image, "docker.io/library/busybox:1.") && !strings.HasPrefix(container.Image, "docker.io/curlimages/curl:8.") {
			t.Errorf("container %s: image = %q, want docker.io/library/busybox:1.x or docker.io/curlimages/curl:8.x", container.Name, container.Image)
		}
	}
}

// checkVolumes does with each volume what the plugin would: it parses the
// attributes and renders the files from the objects that the example brings.
func checkVolumes(t *testing.T, example *corev1.Pod, objects payload.Objects) {
	t.Helper()
	for _, podVolume := range ours(t, example) {
		csi := podVolume.CSI
		if csi.ReadOnly == nil || !*csi.ReadOnly {
			t.Errorf("volume %s: csi.readOnly must be true", podVolume.Name)
		}
		spec, err := volume.Parse(csi.VolumeAttributes, podOf(example), volume.AcrossNamespaces())
		if err != nil {
			t.Errorf("volume %s: %v", podVolume.Name, err)
			continue
		}
		var opts payload.Options
		if example.Spec.SecurityContext != nil {
			opts.FSGroup = example.Spec.SecurityContext.FSGroup
		}
		resolved, leftOut, err := pod.Resolve(spec,
			func(container string) (volume.Env, []string, error) {
				return pod.Env(&example.Spec, podOf(example).Namespace, container)
			},
			func(name string) ([]volume.Source, error) {
				return pod.VolumeSources(&example.Spec, field.NewPath("spec"), podOf(example).Namespace, name)
			},
			func(name string) []pod.Below { return pod.MountsBelow(&example.Spec, field.NewPath("spec"))[name] }, podVolume.Name, nil)
		if err != nil || len(leftOut) > 0 {
			t.Errorf("volume %s: %v; left out: %q", podVolume.Name, err, leftOut)
			continue
		}
		shown, err := payload.Render(resolved, objects, opts)
		if err != nil {
			t.Errorf("volume %s: %v", podVolume.Name, err)
			continue
		}
		if len(shown.Skipped) > 0 {
			t.Errorf("volume %s: skipped: %v", podVolume.Name, shown.Skipped)
		}
	}
}

// ours returns the driver's volumes of a pod. Another volume is there to be shown by one of them,
// and no container mounts it.
func ours(t *testing.T, pod *corev1.Pod) []corev1.Volume {
	t.Helper()
	var found []corev1.Volume
	shown := map[string]bool{}
	for _, podVolume := range pod.Spec.Volumes {
		if podVolume.CSI != nil && podVolume.CSI.Driver == driverName {
			found = append(found, podVolume)
			shown[podVolume.CSI.VolumeAttributes["volume"]] = true
		}
	}
	for _, podVolume := range pod.Spec.Volumes {
		if podVolume.CSI != nil {
			continue
		}
		mounted := slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == podVolume.Name })
		})
		if !shown[podVolume.Name] || mounted {
			t.Errorf("volume %s: shown by a volume of %s: %t, mounted: %t", podVolume.Name, driverName, shown[podVolume.Name], mounted)
		}
	}
	if len(found) == 0 {
		t.Error("the pod has no volume of the driver")
	}
	return found
}

func podOf(pod *corev1.Pod) volume.Pod {
	return volume.Pod{Namespace: cmp.Or(pod.Namespace, exampleNamespace), Name: pod.Name, ServiceAccount: cmp.Or(pod.Spec.ServiceAccountName, "default")}
}

// checkConsent wants a Role and a RoleBinding for each object of another namespace.
func checkConsent(t *testing.T, pod *corev1.Pod, objects []runtime.Object) {
	t.Helper()
	for _, podVolume := range ours(t, pod) {
		spec, err := volume.Parse(podVolume.CSI.VolumeAttributes, podOf(pod), volume.AcrossNamespaces())
		if err != nil {
			t.Error(err)
			continue
		}
		for _, use := range spec.CrossNamespaceRefs(podOf(pod)) {
			role, binding := only[*rbacv1.Role](t, objects), only[*rbacv1.RoleBinding](t, objects)
			rule := rbacv1.PolicyRule{
				APIGroups: []string{""}, Resources: []string{strings.ToLower(string(use.Ref.Kind)) + "s"},
				ResourceNames: []string{use.Ref.Name}, Verbs: []string{"get"},
			}
			if role.Namespace != use.Ref.Namespace || !reflect.DeepEqual(role.Rules, []rbacv1.PolicyRule{rule}) {
				t.Errorf("the Role in %s has %v, want just %v in %s", role.Namespace, role.Rules, rule, use.Ref.Namespace)
			}
			subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: exampleNamespace, Name: podOf(pod).ServiceAccount}
			if binding.Namespace != use.Ref.Namespace || binding.RoleRef.Name != role.Name || !reflect.DeepEqual(binding.Subjects, []rbacv1.Subject{subject}) {
				t.Errorf("the RoleBinding in %s binds %v to %s, want %v", binding.Namespace, binding.Subjects, binding.RoleRef.Name, subject)
			}
		}
	}
}

// payloadObjects returns the ConfigMaps and Secrets among objects in the form in
// which volumes show them.
func payloadObjects(t *testing.T, objects []runtime.Object) payload.Objects {
	t.Helper()
	found := payload.Objects{}
	for _, object := range objects {
		switch object := object.(type) {
		case *corev1.ConfigMap:
			ref := volume.Ref{Kind: volume.ConfigMap, Namespace: cmp.Or(object.Namespace, exampleNamespace), Name: object.Name}
			found[ref] = &volume.Object{Ref: ref, Data: bytesOf(object.Data), BinaryData: object.BinaryData}
		case *corev1.Secret:
			ref := volume.Ref{Kind: volume.Secret, Namespace: cmp.Or(object.Namespace, exampleNamespace), Name: object.Name}
			found[ref] = &volume.Object{Ref: ref, Data: bytesOf(object.StringData)}
		case *corev1.Pod, *corev1.Namespace, *corev1.ServiceAccount, *rbacv1.Role, *rbacv1.RoleBinding, *batchv1.Job:
		default:
			t.Errorf("unexpected object %T", object)
		}
	}
	return found
}

func bytesOf(texts map[string]string) map[string][]byte {
	values := make(map[string][]byte, len(texts))
	for key, text := range texts {
		values[key] = []byte(text)
	}
	return values
}
