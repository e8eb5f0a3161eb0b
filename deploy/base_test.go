package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

const (
	namespace  = "refvol-system"
	name       = "refvol-plugin"
	driverName = "csi.refvol.dev"
)

func TestBaseHasTheseObjectsOnly(t *testing.T) {
	var got []string
	for _, object := range render(t, "base") {
		accessor, err := meta.Accessor(object)
		if err != nil {
			t.Fatal(err)
		}
		kind := object.GetObjectKind().GroupVersionKind().Kind
		got = append(got, fmt.Sprintf("%s %s/%s", kind, accessor.GetNamespace(), accessor.GetName()))
	}
	want := []string{
		"CSIDriver /csi.refvol.dev",
		"ClusterRole /refvol-plugin",
		"ClusterRoleBinding /refvol-plugin",
		"DaemonSet refvol-system/refvol-plugin",
		"Namespace /refvol-system",
		"ServiceAccount refvol-system/refvol-plugin",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("objects:\n got %q\nwant %q", got, want)
	}
}

func TestCSIDriver(t *testing.T) {
	driver := only[*storagev1.CSIDriver](t, render(t, "base"))
	if driver.Name != driverName {
		t.Errorf("name = %q, want %q", driver.Name, driverName)
	}
	no, yes, policy := false, true, storagev1.NoneFSGroupPolicy
	want := storagev1.CSIDriverSpec{
		AttachRequired:       &no,
		PodInfoOnMount:       &yes,
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
		FSGroupPolicy:        &policy,
	}
	if !reflect.DeepEqual(driver.Spec, want) {
		t.Errorf("spec = %s, want exactly %s", asJSON(t, driver.Spec), asJSON(t, want))
	}
	// Without the label OpenShift lets none but privileged namespaces use the driver.
	if got := driver.Labels["security.openshift.io/csi-ephemeral-volume-profile"]; got != "restricted" {
		t.Errorf("the volumes' profile is %q, want restricted", got)
	}
}

// asJSON shows what pointers point to.
func asJSON(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRightsAreTheLeast(t *testing.T) {
	objects := render(t, "base")
	role := only[*rbacv1.ClusterRole](t, objects)
	wantRules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}
	if !reflect.DeepEqual(role.Rules, wantRules) || role.AggregationRule != nil {
		t.Errorf("rules = %+v, aggregated by %+v, want exactly %+v", role.Rules, role.AggregationRule, wantRules)
	}
	binding := only[*rbacv1.ClusterRoleBinding](t, objects)
	if want := (rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}); binding.RoleRef != want {
		t.Errorf("roleRef = %+v, want %+v", binding.RoleRef, want)
	}
	account := only[*corev1.ServiceAccount](t, objects)
	want := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: account.Namespace}}
	if !slices.Equal(binding.Subjects, want) {
		t.Errorf("subjects = %+v, want exactly %+v", binding.Subjects, want)
	}
	if mount := account.AutomountServiceAccountToken; mount == nil || *mount {
		t.Error("the account's token must be mounted by the pod that asks for it only")
	}
}

func TestNamespaceAdmitsPrivilegedPods(t *testing.T) {
	labels := only[*corev1.Namespace](t, render(t, "base")).Labels
	for _, mode := range []string{"enforce", "audit", "warn"} {
		if got := labels["pod-security.kubernetes.io/"+mode]; got != "privileged" {
			t.Errorf("pod-security.kubernetes.io/%s = %q, want privileged", mode, got)
		}
	}
}

func TestImageHasAVersion(t *testing.T) {
	container := pluginContainer(t, only[*appsv1.DaemonSet](t, render(t, "base")))
	if !regexp.MustCompile(`^ghcr\.io/refvol/refvol-plugin:v\d+\.\d+\.\d+$`).MatchString(container.Image) {
		t.Errorf("image = %q, want ghcr.io/refvol/refvol-plugin with a version as its tag", container.Image)
	}
}

func TestOverlayReplacesImage(t *testing.T) {
	objects := renderOverlay(t, "images: [{name: ghcr.io/refvol/refvol-plugin, newName: localhost/plugin, newTag: dev}]\n")
	if got := pluginContainer(t, only[*appsv1.DaemonSet](t, objects)).Image; got != "localhost/plugin:dev" {
		t.Errorf("image = %q, want localhost/plugin:dev", got)
	}
}

func TestOverlayReplacesNamespace(t *testing.T) {
	objects := renderOverlay(t, "namespace: other\n")
	for what, got := range map[string]string{
		"Namespace":                  only[*corev1.Namespace](t, objects).Name,
		"ServiceAccount":             only[*corev1.ServiceAccount](t, objects).Namespace,
		"DaemonSet":                  only[*appsv1.DaemonSet](t, objects).Namespace,
		"ClusterRoleBinding subject": only[*rbacv1.ClusterRoleBinding](t, objects).Subjects[0].Namespace,
	} {
		if got != "other" {
			t.Errorf("%s: namespace = %q, want other", what, got)
		}
	}
}

// TestExistingNamespace renders the lines of docs/install.md that leave the Namespace out.
func TestExistingNamespace(t *testing.T) {
	text, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ {6}namespace: platform\n(?: {6}.*\n)+`).FindString(string(text))
	if lines == "" {
		t.Fatal("docs/install.md has no such lines")
	}
	objects := renderOverlay(t, regexp.MustCompile(`(?m)^ {6}`).ReplaceAllString(lines, ""))
	for _, object := range objects {
		if namespace, ok := object.(*corev1.Namespace); ok {
			t.Errorf("the Namespace %s is there still", namespace.Name)
		}
	}
	if got := only[*appsv1.DaemonSet](t, objects).Namespace; got != "platform" {
		t.Errorf("the DaemonSet's namespace = %q", got)
	}
}

// TestDocumentedInstall has the documents take the manifests, and the image, of main: nothing is released yet.
func TestDocumentedInstall(t *testing.T) {
	found := 0
	for name, text := range documents(t) {
		for _, remote := range regexp.MustCompile(`[^/]github\.com/refvol/refvol/deploy/[^\s"\]]*`).FindAllString(text, -1) {
			found++
			if _, ref, _ := strings.Cut(remote, "?ref="); ref != "main" || !strings.Contains(text, "newTag: main}") {
				t.Errorf("%s: %s is not of main, as the image is", name, remote)
			}
		}
	}
	if found == 0 {
		t.Error("no document installs anything")
	}
}
