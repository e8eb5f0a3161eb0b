package deploy

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/must"
)

// TestChartLeavesOut: a value that leaves objects out leaves out these only, and all else refers to the user's own. nameOverride names what
// fullnameOverride names, which wins.
func TestChartLeavesOut(t *testing.T) {
	monitored := func(more values) values {
		metrics := values{"enabled": true}
		maps.Copy(metrics, more)
		return values{"metrics": metrics}
	}
	for _, test := range []struct {
		name          string
		without, with values
		left          []string
	}{
		{"account", values{"serviceAccount": values{"create": false, "name": "mine"}}, values{"serviceAccount": values{"name": "mine"}}, []string{"ServiceAccount mine"}},
		{"rights", values{"rbac": values{"create": false}}, nil, []string{"ClusterRole refvol-plugin", "ClusterRoleBinding refvol-plugin"}},
		{"monitor", monitored(values{"podMonitor": values{"enabled": false}}), monitored(nil), []string{"PodMonitor refvol-plugin"}},
		{"name", values{"nameOverride": "files"}, values{"fullnameOverride": "files"}, nil},
		{"name beside the full one", values{"nameOverride": "x", "fullnameOverride": "files"}, values{"fullnameOverride": "files"}, nil},
		{"rules", monitored(values{"prometheusRule": values{"enabled": false}}), monitored(nil), []string{"PrometheusRule refvol-plugin"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := byName(t, chartObjects(t, newest, test.with))
			for _, name := range test.left {
				if want[name] == nil {
					t.Errorf("there was no %s", name)
				}
				delete(want, name)
			}
			wantObjects(t, chartObjects(t, newest, test.without), slices.Collect(maps.Values(want)))
		})
	}
}

// TestChartUpdateStrategy: the type and maxUnavailable are the user's. No value makes a second pod on a node, whose driver the kubelet
// would refuse.
func TestChartUpdateStrategy(t *testing.T) {
	rolling := func(maxUnavailable intstr.IntOrString) appsv1.DaemonSetUpdateStrategy {
		return appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: &maxUnavailable},
		}
	}
	for _, test := range []struct {
		overrides values
		want      appsv1.DaemonSetUpdateStrategy
	}{
		{values{"updateStrategy": values{"type": "OnDelete"}}, appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}},
		{values{"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": 2}}}, rolling(intstr.FromInt32(2))},
		{values{"updateStrategy": values{"rollingUpdate": values{"maxUnavailable": "5%"}}, "maxUnavailable": 3}, rolling(intstr.FromString("5%"))},
		{values{"maxUnavailable": 3}, rolling(intstr.FromInt32(3))},
	} {
		want := chartObjects(t, newest, nil)
		only[*appsv1.DaemonSet](t, want).Spec.UpdateStrategy = test.want
		wantObjects(t, chartObjects(t, newest, test.overrides), want)
	}
}

// TestChartGlobalPullSecrets: both pods have the Secrets that a parent chart names for all of its charts, and their own.
func TestChartGlobalPullSecrets(t *testing.T) {
	manifests, hooks := chartTexts(t, newest, values{
		"global":           values{"imagePullSecrets": []any{values{"name": "parent"}, "text", values{"name": "own"}}},
		"imagePullSecrets": []any{values{"name": "own"}},
	})
	want := []corev1.LocalObjectReference{{Name: "parent"}, {Name: "text"}, {Name: "own"}}
	plugin := only[*appsv1.DaemonSet](t, decode(t, chart, manifests)).Spec.Template.Spec.ImagePullSecrets
	check := only[*batchv1.Job](t, decode(t, chart, hooks)).Spec.Template.Spec.ImagePullSecrets
	if !reflect.DeepEqual(plugin, want) || !reflect.DeepEqual(check, want) {
		t.Errorf("the plugin has %v, the check %v, want %v", plugin, check, want)
	}
}

// TestChartOpenShift: the constraints admit the plugin's pod, with the kinds of volumes that it has, each once, and name no other account.
func TestChartOpenShift(t *testing.T) {
	extra := values{"extraVolumes": []any{
		values{"name": "a", "configMap": values{"name": "ca"}},
		values{"name": "b", "secret": values{"secretName": "s"}},
		values{"name": "c", "configMap": values{"name": "x"}},
		values{"name": "d", "hostPath": values{"path": "/x"}},
		values{"name": "e"},
	}}
	without, _ := chartTexts(t, newest, extra)
	extra["openshift"] = values{"enabled": true}
	with, hooks := chartTexts(t, newest, extra)
	var constraints map[string]any
	for _, document := range strings.Split(string(with), "\n---\n") {
		if strings.Contains(document, "kind: SecurityContextConstraints") {
			with = []byte(strings.Replace(string(with), document, "", 1))
			must.Do(t, yaml.UnmarshalStrict([]byte(document), &constraints))
		}
	}
	wantObjects(t, decode(t, chart, with), decode(t, chart, without))
	anyone := map[string]any{"type": "RunAsAny"}
	want := map[string]any{
		"apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
		"metadata": map[string]any{"name": name, "labels": map[string]any{
			"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "refvol", "app.kubernetes.io/managed-by": "Helm",
			"app.kubernetes.io/part-of": "refvol", "app.kubernetes.io/version": "v0.1.0", "helm.sh/chart": "refvol-0.1.0",
		}},
		"users":   []any{"system:serviceaccount:" + namespace + ":" + name},
		"volumes": []any{"hostPath", "projected", "configMap", "secret", "emptyDir"}, "priority": nil,
		"allowPrivilegedContainer": true, "allowPrivilegeEscalation": true, "allowHostDirVolumePlugin": true,
		"allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
		"allowedCapabilities": []any{}, "defaultAddCapabilities": []any{}, "requiredDropCapabilities": []any{},
		"readOnlyRootFilesystem": true,
		"fsGroup":                anyone, "runAsUser": anyone, "seLinuxContext": anyone, "supplementalGroups": anyone,
	}
	if !reflect.DeepEqual(constraints, want) {
		t.Errorf("constraints %v\n       want %v", constraints, want)
	}
	if user := only[*batchv1.Job](t, decode(t, chart, hooks)).Spec.Template.Spec.SecurityContext.RunAsUser; user != nil {
		t.Errorf("the check runs as user %d, which OpenShift refuses", *user)
	}
	for _, kind := range []string{"flexVolume", "configmap"} {
		says := "extraVolumes[1]: Forbidden: " + kind + ": with openshift.enabled, the volumes may be hostPath, projected, configMap"
		_, _, err := renderChart(newest, values{"openshift": values{"enabled": true}, "extraVolumes": []any{
			values{"name": "a", "configMap": values{"name": "ca"}}, values{"name": "b", kind: values{}},
		}})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

func hooksOf(t *testing.T, kind string, overrides values) []runtime.Object {
	t.Helper()
	_, hooks := chartTexts(t, newest, overrides)
	var found []runtime.Object
	for _, object := range decode(t, chart, hooks) {
		accessor := must.Get(meta.Accessor(object))(t)
		if accessor.GetAnnotations()["helm.sh/hook"] == kind {
			found = append(found, object)
		}
		// With another policy, objects of a hook stay in the cluster, or Helm fails to create them again.
		const policy = "before-hook-creation,hook-succeeded"
		if got := accessor.GetAnnotations()["helm.sh/hook-delete-policy"]; got != policy {
			t.Errorf("hook %s: the delete policy is %q, want %q", accessor.GetName(), got, policy)
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
	example := must.Get(os.ReadFile("examples/smoke.yaml"))(t)
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
