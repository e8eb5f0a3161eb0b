package deploy

import (
	"os"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
)

func hooksOf(t *testing.T, kind string, overrides values) []runtime.Object {
	t.Helper()
	_, hooks := chartTexts(t, newest, overrides)
	var found []runtime.Object
	for _, object := range decode(t, chart, hooks) {
		accessor := must(meta.Accessor(object))(t)
		if accessor.GetAnnotations()["helm.sh/hook"] == kind {
			found = append(found, object)
		}
	}
	return found
}

// TestChartTest: `helm test` runs the pod of examples/smoke.yaml until it has read the volume. It waits for no change, because no Job makes
// one. Its account may read the ConfigMap, which the plugin needs with identity=pod, and nothing else.
func TestChartTest(t *testing.T) {
	objects := hooksOf(t, "test", values{"global": values{"imagePullSecrets": []any{"registry"}}, "helmTest": values{"image": "r.example.com/curl:1", "tolerations": []any{values{"key": "apps", "operator": "Exists"}}}})
	if len(objects) != 5 {
		t.Errorf("%d objects, want a ConfigMap, an account, a Role, its binding, and the pod", len(objects))
	}
	example := must(os.ReadFile("examples/smoke.yaml"))(t)
	pod, want := only[*corev1.Pod](t, objects), only[*corev1.Pod](t, decode(t, "smoke.yaml", example))
	got := pod.Spec.Containers[0].Args[0]
	if !strings.HasPrefix(want.Spec.Containers[0].Args[0], got) || !strings.Contains(got, "tmpfs ro,") || strings.Contains(got, "left") {
		t.Errorf("the script is\n%s", got)
	}
	want.Spec.Containers[0].Args[0], want.Spec.Containers[0].Image = got, "r.example.com/curl:1"
	want.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	plugin := only[*appsv1.DaemonSet](t, chartObjects(t, newest, nil)).Spec.Template.Spec // the pod runs where that does
	want.Spec.NodeSelector, want.Spec.Affinity = plugin.NodeSelector, plugin.Affinity
	want.Spec.Tolerations = []corev1.Toleration{{Key: "apps", Operator: corev1.TolerationOpExists}}
	if !reflect.DeepEqual(pod.Spec, want.Spec) {
		t.Errorf("the pod is\n%s\nwant\n%s", asJSON(t, pod.Spec), asJSON(t, want.Spec))
	}
	if pod.Namespace != namespace || pod.Annotations["helm.sh/hook-weight"] != "1" {
		t.Errorf("the pod's metadata is %s", asJSON(t, pod.ObjectMeta))
	}
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"refvol-smoke"}, Verbs: []string{"get", "list", "watch"}}}
	if role := only[*rbacv1.Role](t, objects); !reflect.DeepEqual(role.Rules, rules) {
		t.Errorf("the account may %s", asJSON(t, role.Rules))
	}
	if user := only[*corev1.Pod](t, hooksOf(t, "test", values{"openshift": values{"enabled": true}})).Spec.SecurityContext; user.RunAsUser != nil || user.FSGroup != nil {
		t.Errorf("on OpenShift it asks for %s", asJSON(t, user))
	}
	if left := hooksOf(t, "test", values{"rbac": values{"create": false}}); len(left) != 3 {
		t.Errorf("without rbac.create there are %d objects, want 3", len(left))
	}
	if left := hooksOf(t, "test", values{"helmTest": values{"enabled": false}}); len(left) != 0 {
		t.Errorf("without the test there is %s", asJSON(t, left))
	}
}
