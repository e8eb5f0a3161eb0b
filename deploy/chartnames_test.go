package deploy

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// TestChartLeavesOut: a value that leaves objects out leaves out these only, and all else refers to the user's own.
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

// TestChartOwnRights: without rbac.create the check before an uninstallation makes no rights either, and keeps its account.
func TestChartOwnRights(t *testing.T) {
	objects := hooksOf(t, "pre-delete", values{"rbac": values{"create": false}})
	only[*corev1.ServiceAccount](t, objects)
	only[*batchv1.Job](t, objects)
	if len(objects) != 2 {
		t.Errorf("the hooks are %s", asJSON(t, objects))
	}
}

// TestChartNameOverride: nameOverride names what fullnameOverride names, which wins.
func TestChartNameOverride(t *testing.T) {
	wantObjects(t, chartObjects(t, newest, values{"nameOverride": "files"}), chartObjects(t, newest, values{"fullnameOverride": "files"}))
	wantObjects(t, chartObjects(t, newest, values{"nameOverride": "x", "fullnameOverride": "files"}), chartObjects(t, newest, values{"fullnameOverride": "files"}))
}

// TestChartUpdateStrategy: the type and maxUnavailable are the user's. No value makes a second pod on a node, whose driver the kubelet
// would refuse.
func TestChartUpdateStrategy(t *testing.T) {
	rolling := func(maxUnavailable intstr.IntOrString) appsv1.DaemonSetUpdateStrategy {
		return appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: ptr(intstr.FromInt32(0)), MaxUnavailable: &maxUnavailable},
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
	manifests, hooks, err := renderChart(newest, values{
		"global":           values{"imagePullSecrets": []any{values{"name": "parent"}, "text", values{"name": "own"}}},
		"imagePullSecrets": []any{values{"name": "own"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []corev1.LocalObjectReference{{Name: "parent"}, {Name: "text"}, {Name: "own"}}
	plugin := only[*appsv1.DaemonSet](t, decode(t, chart, manifests)).Spec.Template.Spec.ImagePullSecrets
	check := only[*batchv1.Job](t, decode(t, chart, hooks)).Spec.Template.Spec.ImagePullSecrets
	if !reflect.DeepEqual(plugin, want) || !reflect.DeepEqual(check, want) {
		t.Errorf("the plugin has %v, the check %v, want %v", plugin, check, want)
	}
}
