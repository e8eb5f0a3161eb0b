package deploy

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/refvol/refvol/internal/must"
)

type chartValue struct {
	overrides values
	// change makes of the objects of the chart's defaults those that the value has to bring about.
	change func(t *testing.T, objects []runtime.Object)
}

func chartValues() []chartValue {
	pod := func(name string, value any, change func(pod *corev1.PodSpec)) chartValue {
		return chartValue{values{name: value}, func(t *testing.T, objects []runtime.Object) {
			change(&only[*appsv1.DaemonSet](t, objects).Spec.Template.Spec)
		}}
	}
	return []chartValue{
		pod("image", values{"digest": "sha256:" + strings.Repeat("0a", 32), "tag": "v9", "pullPolicy": "Always"}, func(pod *corev1.PodSpec) {
			pod.Containers[0].Image = "ghcr.io/refvol/refvol-plugin@sha256:" + strings.Repeat("0a", 32)
			pod.Containers[0].ImagePullPolicy = corev1.PullAlways
		}),
		pod("imagePullSecrets", []any{values{"name": "registry"}}, func(pod *corev1.PodSpec) {
			pod.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		}),
		pod("nodeSelector", values{"pool": "apps"}, func(pod *corev1.PodSpec) {
			pod.NodeSelector = map[string]string{"kubernetes.io/os": "linux", "pool": "apps"}
		}),
		pod("tolerations", []any{}, func(pod *corev1.PodSpec) { pod.Tolerations = nil }),
		pod("affinity", values{"nodeAffinity": nil}, func(pod *corev1.PodSpec) { pod.Affinity = nil }),
		pod("priorityClassName", "important", func(pod *corev1.PodSpec) { pod.PriorityClassName = "important" }),
		pod("resources", values{"requests": values{"memory": "1Gi"}}, func(pod *corev1.PodSpec) {
			pod.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("1Gi")
		}),
		pod("logFormat", "json", func(pod *corev1.PodSpec) { appendArgs(pod, "--logging-format=json") }),
		pod("logLevel", 4, func(pod *corev1.PodSpec) { appendArgs(pod, "--v=4") }),
		pod("extraArgs", []any{"--selinux-context=x", "--profiling-address=127.0.0.1:6060"}, func(pod *corev1.PodSpec) {
			appendArgs(pod, "--selinux-context=x", "--profiling-address=127.0.0.1:6060")
		}),
		pod("resyncInterval", "1m30s", func(pod *corev1.PodSpec) { appendArgs(pod, "--resync-interval=1m30s") }),
		pod("defaultSpread", "5m", func(pod *corev1.PodSpec) { appendArgs(pod, "--default-spread=5m") }),
		pod("publishWait", "10s", func(pod *corev1.PodSpec) { appendArgs(pod, "--publish-wait=10s") }),
		pod("maxVolumeSize", "64Mi", func(pod *corev1.PodSpec) { appendArgs(pod, "--max-volume-size=64Mi") }),
		pod("maxTotalSize", "1.5Gi", func(pod *corev1.PodSpec) { appendArgs(pod, "--max-total-size=1.5Gi") }),
		pod("maxCachedSize", "1Gi", func(pod *corev1.PodSpec) { appendArgs(pod, "--max-cached-size=1Gi") }),
		pod("kubeletDir", "/data/kubelet/", func(pod *corev1.PodSpec) {
			const from, to = "/var/lib/kubelet", "/data/kubelet"
			for i, arg := range pod.Containers[0].Args {
				pod.Containers[0].Args[i] = strings.ReplaceAll(arg, from, to)
			}
			pod.Containers[0].VolumeMounts[0].MountPath = to + "/pods"
			for i := range pod.Volumes {
				pod.Volumes[i].HostPath.Path = strings.ReplaceAll(pod.Volumes[i].HostPath.Path, from, to)
			}
		}),
		pod("env", []any{values{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}}, func(pod *corev1.PodSpec) {
			pod.Containers[0].Env = append(pod.Containers[0].Env, corev1.EnvVar{Name: "HTTPS_PROXY", Value: "http://proxy:3128"})
		}),
		pod("extraVolumes", []any{values{"name": "ca", "configMap": values{"name": "ca"}}}, func(pod *corev1.PodSpec) {
			ca := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}}
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: "ca", VolumeSource: corev1.VolumeSource{ConfigMap: ca}})
		}),
		pod("extraVolumeMounts", []any{values{"name": "ca", "mountPath": "/ca"}}, func(pod *corev1.PodSpec) {
			pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "ca", MountPath: "/ca"})
		}),
		pod("startupProbe", values{"failureThreshold": 120}, func(pod *corev1.PodSpec) { pod.Containers[0].StartupProbe.FailureThreshold = 120 }),
		pod("livenessProbe", values{"timeoutSeconds": 9}, func(pod *corev1.PodSpec) { pod.Containers[0].LivenessProbe.TimeoutSeconds = 9 }),
		pod("readinessProbe", values{"periodSeconds": 7}, func(pod *corev1.PodSpec) { pod.Containers[0].ReadinessProbe.PeriodSeconds = 7 }),
		{values{"daemonSetAnnotations": values{"a": "b"}}, func(t *testing.T, objects []runtime.Object) {
			only[*appsv1.DaemonSet](t, objects).Annotations = map[string]string{"a": "b"}
		}},
		{values{"serviceAccount": values{"name": "x", "annotations": values{"a": "b"}}}, func(t *testing.T, objects []runtime.Object) {
			account := only[*corev1.ServiceAccount](t, objects)
			account.Name, account.Annotations = "x", map[string]string{"a": "b"}
			only[*appsv1.DaemonSet](t, objects).Spec.Template.Spec.ServiceAccountName = "x"
			only[*rbacv1.ClusterRoleBinding](t, objects).Subjects[0].Name = "x"
		}},
		{values{"fullnameOverride": "x"}, func(t *testing.T, objects []runtime.Object) {
			binding := only[*rbacv1.ClusterRoleBinding](t, objects)
			binding.RoleRef.Name, binding.Subjects[0].Name = "x", "x"
			daemonSet := only[*appsv1.DaemonSet](t, objects)
			daemonSet.Spec.Template.Spec.ServiceAccountName = "x"
			for _, object := range []metav1.Object{binding, daemonSet, only[*rbacv1.ClusterRole](t, objects), only[*corev1.ServiceAccount](t, objects)} {
				object.SetName("x")
			}
		}},
		{values{
			"podLabels": values{"team": "x", "app.kubernetes.io/name": "y"}, "podAnnotations": values{"a": "b"},
		}, func(t *testing.T, objects []runtime.Object) {
			template := &only[*appsv1.DaemonSet](t, objects).Spec.Template
			template.Labels["team"], template.Annotations = "x", map[string]string{"a": "b"}
		}},
		{values{"commonLabels": values{"team": "x", "app.kubernetes.io/name": "y"}}, func(t *testing.T, objects []runtime.Object) {
			only[*appsv1.DaemonSet](t, objects).Spec.Template.Labels["team"] = "x"
			for _, object := range objects {
				accessor := must.Get(meta.Accessor(object))(t)
				accessor.GetLabels()["team"] = "x"
			}
		}},
	}
}

// TestChartAdds: a value that adds an object adds that, and changes nothing else.
func TestChartAdds(t *testing.T) {
	dashboard := must.Get(os.ReadFile("dashboards/refvol.json"))(t)
	labels := func(more map[string]string) map[string]string {
		all := map[string]string{"app.kubernetes.io/name": name}
		maps.Copy(all, more)
		return all
	}
	for _, test := range []struct {
		overrides values
		want      runtime.Object
	}{
		{values{"dashboard": values{"enabled": true, "annotations": values{"grafana_folder": "CSI"}}}, &corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{
				Name: "refvol-dashboard", Namespace: namespace, Labels: labels(map[string]string{"grafana_dashboard": "1"}),
				Annotations: map[string]string{"grafana_folder": "CSI"},
			},
			Data: map[string]string{"refvol.json": string(dashboard)},
		}},
		{values{"priorityClassQuota": values{"enabled": true, "pods": 200}}, &corev1.ResourceQuota{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels(nil)},
			Spec: corev1.ResourceQuotaSpec{
				Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("200")},
				ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
					ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"system-node-critical"},
				}}},
			},
		}},
	} {
		wantObjects(t, chartObjects(t, newest, test.overrides), append(chartObjects(t, newest, nil), test.want))
	}
	// An object of the user's own has what the user gave it, with the templates in it filled in.
	with, _ := chartTexts(t, newest, values{"extraObjects": []any{values{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": values{"name": "{{ .Release.Name }}-extra"},
	}}})
	if extra := only[*corev1.ConfigMap](t, decode(t, chart, with)); extra.Name != "refvol-extra" || extra.Labels != nil {
		t.Errorf("the extra object is %s", asJSON(t, extra))
	}
}

// TestChartNames: with another name and account each reference follows: the alerts' DaemonSet, the priority level, and the
// policy that holds the account to the startup taint.
func TestChartNames(t *testing.T) {
	objects := chartObjects(t, newest, values{
		"fullnameOverride": "files", "serviceAccount": values{"name": "files-account"}, "metrics": values{"enabled": true, "interval": "15s", "labels": values{"release": "x"}},
		"flowSchema": values{"enabled": true}, "startupTaint": values{"enabled": true}, "networkPolicy": values{"enabled": true},
	})
	schema, level := only[*flowcontrolv1.FlowSchema](t, objects), only[*flowcontrolv1.PriorityLevelConfiguration](t, objects)
	if schema.Name != "files" || level.Name != "files" || schema.Spec.PriorityLevelConfiguration.Name != level.Name ||
		schema.Spec.Rules[0].Subjects[0].ServiceAccount.Name != "files-account" {
		t.Errorf("the schema is %s, the level %s", asJSON(t, schema), level.Name)
	}
	policy, ok := byName(t, objects)["ValidatingAdmissionPolicy refvol-startup-taint"].(*admissionv1.ValidatingAdmissionPolicy)
	if !ok || !strings.Contains(policy.Spec.MatchConditions[0].Expression, "endsWith(':files-account')") {
		t.Errorf("the policy is for %s", asJSON(t, policy))
	}
	monitor, rule := only[*monitoringv1.PodMonitor](t, objects), only[*monitoringv1.PrometheusRule](t, objects)
	if monitor.Spec.PodMetricsEndpoints[0].Interval != "15s" || monitor.Labels["release"] != "x" || rule.Labels["release"] != "x" {
		t.Errorf("the monitor is %s", asJSON(t, monitor))
	}
	if text := string(asJSON(t, rule)); strings.Contains(text, `daemonset=\"refvol-plugin`) || strings.Count(text, `daemonset=\"files\"`) < 4 || !strings.Contains(text, `created_by_name=\"files\"`) {
		t.Errorf("the alerts are %s", text)
	}
	// What selects the plugin's pods stays.
	if got := only[*appsv1.DaemonSet](t, objects).Spec.Selector.MatchLabels; !maps.Equal(got, map[string]string{"app.kubernetes.io/name": name}) {
		t.Errorf("the DaemonSet selects %v", got)
	}
}

func appendArgs(pod *corev1.PodSpec, args ...string) {
	pod.Containers[0].Args = append(pod.Containers[0].Args, args...)
}

// TestChartValues: a value changes what it is for, and nothing else. All are set at once.
func TestChartValues(t *testing.T) {
	want, overrides := chartObjects(t, newest, nil), values{}
	for _, value := range chartValues() {
		value.change(t, want)
		maps.Copy(overrides, value.overrides)
	}
	wantObjects(t, chartObjects(t, newest, overrides), want)
}

// TestChartDefaults: without a value the node's identity reads, and the namespace is the user's.
func TestChartDefaults(t *testing.T) {
	manifests, _ := chartTexts(t, newest, nil)
	objects := withoutStandardLabels(t, decode(t, chart, manifests))
	for _, object := range objects {
		if _, ok := object.(*corev1.Namespace); ok {
			t.Error("it has a namespace")
		}
	}
	wantObjects(t, append(objects, only[*corev1.Namespace](t, renderWith(t, nil))), renderWith(t, []string{"node-identity"}))
}

func TestChartAdmissionActionsAndPorts(t *testing.T) {
	objects := chartObjects(t, newest, values{
		"identity":      "pod",
		"admission":     values{"enabled": true, "validationActions": []any{"Warn", "Audit"}},
		"networkPolicy": values{"enabled": true, "ports": []any{8443}},
		"metrics":       values{"enabled": true, "namespace": "prometheus"},
	})
	actions := only[*admissionv1.ValidatingAdmissionPolicyBinding](t, objects).Spec.ValidationActions
	if want := []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}; !reflect.DeepEqual(actions, want) {
		t.Errorf("actions %v, want %v", actions, want)
	}
	network := only[*networkingv1.NetworkPolicy](t, objects).Spec
	if got := network.Ingress[0].From[0].NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]; got != "prometheus" {
		t.Errorf("pods of the namespace %q may connect, want prometheus", got)
	}
	if len(network.Egress) != 1 || len(network.Egress[0].Ports) != 1 || network.Egress[0].Ports[0].Port.IntValue() != 8443 {
		t.Errorf("egress %s, want the port 8443 only", asJSON(t, network.Egress))
	}
}

// TestChartRefuses: values that are wrong or exclude each other fail to render, and say why.
func TestChartRefuses(t *testing.T) {
	for _, test := range []struct {
		overrides values
		says      string
	}{
		{values{"crossNamespace": true}, "crossNamespace: the plugin would not start: --cross-namespace: Forbidden: with --identity=node"},
		{values{"crossNamespace": true}, "set identity to pod or plugin, or leave crossNamespace out"},
		{values{"extraArgs": []any{"--v=4", "--identity=pod"}}, "extraArgs[0]: Forbidden: --v: set the value logLevel"},
		{values{"extraArgs": []any{"--selinux-context=x", "--startup-taint=x"}}, "extraArgs[1]: Forbidden: --startup-taint: set the value startupTaint.enabled"},
		{values{"extraArgs": []any{"--max-volume-size=1Mi"}}, "extraArgs[0]: Forbidden: --max-volume-size: set the value maxVolumeSize"},
		{values{"extraArgs": []any{"--resync-intervall=1m"}}, "/extraArgs/0"},
		{values{"resyncInterval": "soon"}, "/resyncInterval"},
		{values{"maxVolumeSize": "-1Mi"}, "/maxVolumeSize"},
		{values{"extraArgs": []any{"--driver-name", "x"}}, "/extraArgs/1"},
		{values{"extraArgs": []any{"--driver-name=x"}}, "extraArgs[0]: Forbidden: --driver-name: the chart sets it"},
		{values{"identity": "nodes"}, "/identity"},
		{values{"changeDetection": "watch"}, "/changeDetection"},
		{values{"kubeletDir": "data"}, "/kubeletDir"},
		{values{"image": values{"digest": "0a"}}, "/image/digest"},
		{values{"admision": values{"enabled": true}}, "admision"},
		{values{"admission": true}, "/admission"},
		{values{"metrics": values{"enabled": true, "namespace": ""}}, "/metrics/namespace"},
		{values{"maxUnavailable": "0%"}, "/maxUnavailable"},
		{values{"networkPolicy": values{"enabled": true, "ports": nil}}, "ports"}, // it would allow all egress
		{values{"networkPolicy": values{"enabled": true, "addresses": []any{"10.96.0.1"}}}, "/networkPolicy/addresses/0"},
		{values{"podLabels": values{"a": 1}}, "/podLabels/a"},
		{values{"livenessProbe": values{"httpGet": values{"path": "/"}}}, "/livenessProbe"},
		{values{"fullnameOverride": "A"}, "/fullnameOverride"},
		{values{"metrics": values{"enabled": true, "interval": "often"}}, "/metrics/interval"},
		{values{"env": []any{values{"value": "x"}}}, "/env/0"},
		{values{"serviceAccount": values{"create": false}}, "serviceAccount.name: Required value: with serviceAccount.create=false, the name of your own account"},
		{values{"admission": values{"enabled": true, "validationActions": []any{"Deny", "Audit", "Warn"}}}, `admission.validationActions: Invalid value: ["Deny","Audit","Warn"]: must not contain both Deny and Warn`},
		{values{"updateStrategy": values{"type": "Recreate"}}, "/updateStrategy/type"},
		{values{"updateStrategy": values{"rollingUpdate": values{"maxSurge": 1}}}, "/updateStrategy/rollingUpdate"},
		{values{"nameOverride": "A"}, "/nameOverride"},
		{values{"global": values{"imagePullSecrets": "x"}}, "/global/imagePullSecrets"},
	} {
		if _, _, err := renderChart(newest, test.overrides); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: got %v, want %q", test.overrides, err, test.says)
		}
	}
}

// TestChartUninstallCheck: what runs before the release is deleted may list pods, and nothing else,
// and runs without any right on its node.
func TestChartUninstallCheck(t *testing.T) {
	objects := hooksOf(t, "pre-delete", values{
		"imagePullSecrets": []any{values{"name": "registry"}}, "nodeSelector": values{"pool": "apps"},
		"uninstallCheck": values{"tolerations": []any{values{"operator": "Exists"}}},
	})
	const check = "refvol-uninstall-check"
	role, binding := only[*rbacv1.ClusterRole](t, objects), only[*rbacv1.ClusterRoleBinding](t, objects)
	if want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}}; !reflect.DeepEqual(role.Rules, want) {
		t.Errorf("rules %v, want %v", role.Rules, want)
	}
	if want := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: check, Namespace: namespace}}; !reflect.DeepEqual(binding.Subjects, want) || binding.RoleRef.Name != role.Name {
		t.Errorf("%s for %v, want %s for %v", binding.RoleRef.Name, binding.Subjects, role.Name, want)
	}
	job, daemonSet := only[*batchv1.Job](t, objects), only[*appsv1.DaemonSet](t, chartObjects(t, newest, nil))
	pod, plugin := job.Spec.Template.Spec, daemonSet.Spec.Template.Spec
	if pod.ServiceAccountName != check || len(pod.Volumes) != 0 || len(pod.ImagePullSecrets) != 1 || pod.Containers[0].Image != strings.Replace(plugin.Containers[0].Image, "refvol-plugin", "kubectl-refvol", 1) {
		t.Errorf("the job is %s", asJSON(t, job))
	}
	if !reflect.DeepEqual(pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) || pod.NodeSelector["pool"] != "apps" ||
		!slices.Contains(pod.Containers[0].Args, "--plugin-namespace="+namespace) {
		t.Errorf("the check's pod is %s", asJSON(t, pod))
	}
	// helm prints the pods that hold up the release, and does not wait for ever.
	if job.Annotations["helm.sh/hook-output-log-policy"] != "hook-failed" || job.Spec.ActiveDeadlineSeconds == nil || *job.Spec.ActiveDeadlineSeconds >= 300 {
		t.Errorf("the job has the annotations %v and the deadline %v", job.Annotations, job.Spec.ActiveDeadlineSeconds)
	}
	for label, value := range daemonSet.Spec.Selector.MatchLabels {
		if job.Spec.Template.Labels[label] == value {
			t.Errorf("the DaemonSet selects the check's pod by %s", label)
		}
	}
	if left := hooksOf(t, "pre-delete", values{"rbac": values{"create": false}}); len(left) != 2 {
		t.Errorf("without rbac.create there are %d objects, want the account and the job", len(left))
	}
	if none := hooksOf(t, "pre-delete", values{"uninstallCheck": values{"enabled": false}}); len(none) != 0 {
		t.Errorf("without the check there is %s", asJSON(t, none))
	}
}
