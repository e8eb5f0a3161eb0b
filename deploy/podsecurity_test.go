package deploy

import (
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
)

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
	want := &corev1.SecurityContext{Privileged: ptr(true), ReadOnlyRootFilesystem: ptr(true)}
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

// wantOnly wants no field of a struct set but the named ones.
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
