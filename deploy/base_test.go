package deploy

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/refvol/refvol/internal/doclines"
)

const (
	namespace  = "refvol-system"
	name       = "refvol-plugin"
	driverName = "csi.refvol.dev"
)

func TestCSIDriver(t *testing.T) {
	driver := only[*storagev1.CSIDriver](t, renderWith(t, nil))
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
	return must(json.Marshal(value))(t)
}

func TestExistingNamespace(t *testing.T) {
	blocks := doclines.Blocks(documents(t)["docs/install.md"], "yaml")
	i := slices.IndexFunc(blocks, func(block string) bool { return strings.HasPrefix(block, "namespace: platform\n") })
	if i < 0 {
		t.Fatal("docs/install.md has no such lines")
	}
	objects := render(t, kustomization(t, nil, blocks[i]))
	for _, object := range objects {
		if namespace, ok := object.(*corev1.Namespace); ok {
			t.Errorf("the Namespace %s is there still", namespace.Name)
		}
	}
	for what, got := range map[string]string{
		"ServiceAccount":             only[*corev1.ServiceAccount](t, objects).Namespace,
		"DaemonSet":                  only[*appsv1.DaemonSet](t, objects).Namespace,
		"ClusterRoleBinding subject": only[*rbacv1.ClusterRoleBinding](t, objects).Subjects[0].Namespace,
	} {
		if got != "platform" {
			t.Errorf("%s: namespace = %q, want platform", what, got)
		}
	}
}
