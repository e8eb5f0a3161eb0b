package deploy

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestStrategyOverlays holds each overlay to one flag and the rights that it takes,
// with nothing else changed.
func TestStrategyOverlays(t *testing.T) {
	for _, test := range []struct {
		name, flag string
		more       []rbacv1.PolicyRule
	}{
		{"get", "--change-detection=Get", nil},
		{"cache", "--change-detection=Cache", []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, want := render(t, filepath.Join("overlays", test.name)), render(t, "base")
			role := only[*rbacv1.ClusterRole](t, want)
			if resources := []string{"configmaps", "secrets"}; !slices.Equal(role.Rules[0].Resources, resources) {
				t.Fatalf("the base's first rule is for %q, want %q", role.Rules[0].Resources, resources)
			}
			role.Rules[0].Verbs = []string{"get"}
			role.Rules = append(role.Rules, test.more...)
			container := pluginContainer(t, only[*appsv1.DaemonSet](t, want))
			container.Args = append(container.Args, test.flag)
			wantSame(t, got, want)
		})
	}
}

// TestStartupTaintOverlay holds the overlay to its flag and the right that this takes.
func TestStartupTaintOverlay(t *testing.T) {
	got, want := render(t, "overlays/startup-taint"), render(t, "base")
	role := only[*rbacv1.ClusterRole](t, want)
	role.Rules = append(role.Rules, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"},
	})
	container := pluginContainer(t, only[*appsv1.DaemonSet](t, want))
	container.Args = append(container.Args, "--startup-taint="+driverName+"/agent-not-ready")
	wantSame(t, got, want)
	if flags(t, container)["registration-dir"] == "" {
		t.Error("without --registration-dir nobody tells when the taint may go")
	}
}

// TestCrossNamespaceOverlay holds it to its flag and the right to ask.
func TestCrossNamespaceOverlay(t *testing.T) {
	got, want := render(t, "overlays/cross-namespace"), render(t, "base")
	role := only[*rbacv1.ClusterRole](t, want)
	role.Rules = append(role.Rules, rbacv1.PolicyRule{
		APIGroups: []string{"authorization.k8s.io"}, Resources: []string{"subjectaccessreviews"}, Verbs: []string{"create"},
	})
	container := pluginContainer(t, only[*appsv1.DaemonSet](t, want))
	container.Args = append(container.Args, "--cross-namespace")
	wantSame(t, got, want)
}

// TestEveryOverlayIsTested names those that a test of this package knows.
func TestEveryOverlayIsTested(t *testing.T) {
	want := []string{
		"admission", "admission-cross-namespace", "cache", "cross-namespace", "get",
		"pod-identity", "pod-identity-before-1.35", "pod-identity-cross-namespace", "startup-taint",
	}
	if got := overlays(t); !slices.Equal(got, want) {
		t.Errorf("overlays are %q, want %q", got, want)
	}
}

// overlays returns the names of all of them.
func overlays(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("overlays")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func wantSame(t *testing.T, got, want []runtime.Object) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d objects, want %d", len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("object %d:\n got %s\nwant %s", i, asJSON(t, got[i]), asJSON(t, want[i]))
		}
	}
}
