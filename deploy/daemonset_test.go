package deploy

import (
	"maps"
	"path"
	"reflect"
	"slices"
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
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromString("10%"))},
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

// TestPodSecurity holds the pod of the base to what its mounts need, and components change its
// flags alone (TestComponents). All that a pod's spec can ask for and this one doesn't is zero: a
// field that is set must be here, with its reason.
func TestPodSecurity(t *testing.T) {
	daemonSet := only[*appsv1.DaemonSet](t, renderWith(t, nil))
	checkPodFields(t, &daemonSet.Spec.Template.Spec)
	checkContainerFields(t, pluginContainer(t, daemonSet))
}

// checkPodFields wants no field of the pod set but these. So there are no host
// namespaces, no security context for the pod (fsGroup, sysctls), no init or ephemeral
// container, no shared process namespace, no user namespace (which a mount could not
// leave), and no host alias.
func checkPodFields(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	wantOnly(t, "pod", pod, []string{
		"Volumes", "Containers", "TerminationGracePeriodSeconds", "NodeSelector", "ServiceAccountName",
		"AutomountServiceAccountToken", "Affinity", "Tolerations", "PriorityClassName", "EnableServiceLinks",
	})
	// The account has no automatic token: this pod alone asks for it, to reach the API server.
	if mount := pod.AutomountServiceAccountToken; mount == nil || !*mount {
		t.Error("the pod needs its account's token")
	}
	if links := pod.EnableServiceLinks; links == nil || *links {
		t.Error("the plugin needs to know of no service")
	}
}

// checkContainerFields wants no field of the container set but these. A privileged
// container has every capability, and with what mounting takes none of the others is
// worth dropping; the runtime applies no seccomp profile to it, the usual AppArmor
// profile forbids mounts, and Kubernetes refuses to forbid it privilege escalation. What
// does nothing would only look like protection. The user is the image's, root, as a mount
// takes CAP_SYS_ADMIN.
func checkContainerFields(t *testing.T, container *corev1.Container) {
	t.Helper()
	wantOnly(t, "container", container, []string{
		"Name", "Image", "Args", "Env", "Ports", "Resources", "VolumeMounts", "TerminationMessagePolicy",
		"LivenessProbe", "ReadinessProbe", "StartupProbe", "SecurityContext",
	})
	want := &corev1.SecurityContext{Privileged: new(true), ReadOnlyRootFilesystem: new(true)}
	if !reflect.DeepEqual(container.SecurityContext, want) {
		t.Errorf("security context = %s, want exactly %s", asJSON(t, container.SecurityContext), asJSON(t, want))
	}
	for _, port := range container.Ports {
		if port.HostPort != 0 || port.HostIP != "" {
			t.Errorf("port %s is the node's", port.Name)
		}
	}
	if env := container.Env; len(env) != 1 || env[0].Value != "" {
		t.Errorf("environment = %+v, want the node's name only", env)
	}
}

func wantOnly(t *testing.T, what string, object any, names []string) {
	t.Helper()
	value := reflect.ValueOf(object).Elem()
	for i := range value.NumField() {
		name := value.Type().Field(i).Name
		if set := !value.Field(i).IsZero(); set != slices.Contains(names, name) {
			t.Errorf("%s: %s is set: %t, want %t", what, name, set, !set)
		}
	}
}
