package deploy

import (
	"maps"
	"path"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestDaemonSetPod(t *testing.T) {
	daemonSet := only[*appsv1.DaemonSet](t, renderWith(t, nil))
	pod := daemonSet.Spec.Template.Spec
	container := pluginContainer(t, daemonSet)
	asks := func(path string) *corev1.HTTPGetAction {
		return &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}
	}

	for _, property := range []struct {
		name      string
		got, want any
	}{
		{"updateStrategy", daemonSet.Spec.UpdateStrategy, appsv1.DaemonSetUpdateStrategy{
			Type:          appsv1.RollingUpdateDaemonSetStrategyType,
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: ptr(intstr.FromInt32(0)), MaxUnavailable: ptr(intstr.FromString("10%"))},
		}},
		{"priorityClassName", pod.PriorityClassName, "system-node-critical"},
		{"affinity", pod.Affinity, &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
					{Key: "eks.amazonaws.com/compute-type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"fargate"}},
				},
			}}},
		}}},
		{"tolerations", pod.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
		{"startup probe", container.StartupProbe.HTTPGet, asks("/healthz")},
		{"liveness probe", container.LivenessProbe.HTTPGet, asks("/healthz")},
		{"readiness probe", container.ReadinessProbe.HTTPGet, asks("/readyz")},
		// A live plugin that is slow under load must outlast a short stall.
		{"liveness gives up after 30 s", container.LivenessProbe.PeriodSeconds*container.LivenessProbe.FailureThreshold >= 30, true},
		{"kubectl refvol status shows the end of the log", container.TerminationMessagePolicy, corev1.TerminationMessageFallbackToLogsOnError},
		{"limits", container.Resources.Limits, corev1.ResourceList(nil)},
		{"memory request is set", container.Resources.Requests.Memory().IsZero(), false},
	} {
		if !reflect.DeepEqual(property.got, property.want) {
			t.Errorf("%s = %+v, want %+v", property.name, property.got, property.want)
		}
	}
}

func TestMountsAreTheLeast(t *testing.T) {
	daemonSet := only[*appsv1.DaemonSet](t, renderWith(t, nil))
	propagation := map[string]corev1.MountPropagationMode{}
	for _, mount := range pluginContainer(t, daemonSet).VolumeMounts {
		mode := corev1.MountPropagationNone
		if mount.MountPropagation != nil {
			mode = *mount.MountPropagation
		}
		propagation[nodePath(t, daemonSet, mount.MountPath)] = mode
	}
	want := map[string]corev1.MountPropagationMode{
		"/var/lib/kubelet/pods":                   corev1.MountPropagationBidirectional,
		"/var/lib/kubelet/plugins/csi.refvol.dev": corev1.MountPropagationNone,
		"/var/lib/kubelet/plugins_registry":       corev1.MountPropagationNone,
	}
	if !maps.Equal(propagation, want) {
		t.Errorf("host paths:\n got %v\nwant %v", propagation, want)
	}
	if volumes := daemonSet.Spec.Template.Spec.Volumes; len(volumes) != len(want) {
		t.Errorf("found %d volumes, want %d", len(volumes), len(want))
	}
}

func pluginContainer(t *testing.T, daemonSet *appsv1.DaemonSet) *corev1.Container {
	t.Helper()
	containers := daemonSet.Spec.Template.Spec.Containers
	if len(containers) != 1 || containers[0].Name != name {
		t.Fatalf("found %d containers, want only %s", len(containers), name)
	}
	return &containers[0]
}

// flags returns the flags of `serve` by name.
func flags(t *testing.T, container *corev1.Container) map[string]string {
	t.Helper()
	if len(container.Args) == 0 || container.Args[0] != "serve" {
		t.Fatalf("args = %q, want serve first", container.Args)
	}
	flags := map[string]string{}
	for _, arg := range container.Args[1:] {
		flag, value, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !ok || !strings.HasPrefix(arg, "--") {
			t.Fatalf("arg %q, want --name=value", arg)
		}
		flags[flag] = value
	}
	return flags
}

// nodePath returns where on the node a path of the plugin's container is.
func nodePath(t *testing.T, daemonSet *appsv1.DaemonSet, inContainer string) string {
	t.Helper()
	hostPaths := map[string]string{}
	for _, volume := range daemonSet.Spec.Template.Spec.Volumes {
		if volume.HostPath == nil || volume.HostPath.Type == nil || *volume.HostPath.Type == corev1.HostPathUnset {
			t.Fatalf("volume %s must be a hostPath with a type", volume.Name)
		}
		hostPaths[volume.Name] = volume.HostPath.Path
	}
	for _, mount := range pluginContainer(t, daemonSet).VolumeMounts {
		if rest, ok := strings.CutPrefix(inContainer+"/", mount.MountPath+"/"); ok {
			return path.Join(hostPaths[mount.Name], rest)
		}
	}
	t.Fatalf("%s is on no volume, so it would be lost with the container", inContainer)
	return ""
}

func ptr[T any](value T) *T { return &value }
