package deploy

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
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
	want := storagev1.CSIDriverSpec{
		AttachRequired:       new(false),
		PodInfoOnMount:       new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral},
		FSGroupPolicy:        new(storagev1.NoneFSGroupPolicy),
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
	return must.Get(json.Marshal(value))(t)
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
	volumes, got := map[string]*corev1.HostPathVolumeSource{}, map[string]corev1.MountPropagationMode{}
	for _, volume := range daemonSet.Spec.Template.Spec.Volumes {
		if volumes[volume.Name] = volume.HostPath; volume.HostPath == nil || volume.HostPath.Type == nil || *volume.HostPath.Type == corev1.HostPathUnset {
			t.Fatalf("volume %s must be a hostPath with a type", volume.Name)
		}
	}
	for _, mount := range pluginContainer(t, daemonSet).VolumeMounts {
		got[volumes[mount.Name].Path] = corev1.MountPropagationNone
		if mount.MountPropagation != nil {
			got[volumes[mount.Name].Path] = *mount.MountPropagation
		}
	}
	want := map[string]corev1.MountPropagationMode{
		"/var/lib/kubelet/pods":                   corev1.MountPropagationBidirectional,
		"/var/lib/kubelet/plugins/csi.refvol.dev": corev1.MountPropagationNone,
		"/var/lib/kubelet/plugins_registry":       corev1.MountPropagationNone,
	}
	if !maps.Equal(got, want) || len(volumes) != len(want) {
		t.Errorf("host paths:\n got %v of %d volumes\nwant %v", got, len(volumes), want)
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
