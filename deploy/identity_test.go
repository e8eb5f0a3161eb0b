package deploy

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// TestPodIdentityOverlays holds each of them to its flags, the base's rights without
// those to what volumes show, and what the kubelet must know to hand over tokens.
func TestPodIdentityOverlays(t *testing.T) {
	for _, test := range []struct {
		name      string
		flags     []string
		inSecrets *bool
	}{
		{"pod-identity", []string{"--identity=pod"}, ptr(true)},
		{"pod-identity-before-1.35", []string{"--identity=pod"}, nil},
		{"pod-identity-cross-namespace", []string{"--identity=pod", "--cross-namespace"}, ptr(true)},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, want := render(t, "overlays/"+test.name), render(t, "base")
			role := only[*rbacv1.ClusterRole](t, want)
			role.Rules = role.Rules[1:]
			for _, rule := range role.Rules {
				if slices.Contains(rule.Resources, "secrets") || slices.Contains(rule.Resources, "configmaps") {
					t.Errorf("a rule that stays is for %q", rule.Resources)
				}
			}
			driver := only[*storagev1.CSIDriver](t, want)
			driver.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: ""}}
			driver.Spec.RequiresRepublish = ptr(true)
			driver.Spec.ServiceAccountTokenInSecrets = test.inSecrets
			container := pluginContainer(t, only[*appsv1.DaemonSet](t, want))
			container.Args = append(container.Args, test.flags...)
			wantSame(t, got, want)
		})
	}
}
