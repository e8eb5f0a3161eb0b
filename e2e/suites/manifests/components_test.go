package manifests

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// kinds are those of the objects that the base and the components have, but the namespace and
// the service account, which the suite makes.
const kinds = "clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,csidrivers,networkpolicies," +
	"flowschemas,prioritylevelconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings," +
	"mutatingadmissionpolicies,mutatingadmissionpolicybindings"

// kustomization returns the directory of one that puts components on the base.
func kustomization(t *testing.T, components ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp(shared.dir, "kustomization-")
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.Kustomization(dir, components...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// install applies the base with components until the end of the test, and waits until gone, if
// there is one, says that they have no effect any more.
func install(t *testing.T, gone func(ctx context.Context) error, components ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := shared.kubectl(ctx, "delete", "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin", kinds); err != nil {
			t.Error(err)
		}
		if gone == nil {
			return
		}
		if err := gone(ctx); err != nil {
			t.Error(err)
		}
	})
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
}

// TestEveryComponentIsAccepted: the API server takes all objects of sets that together have every
// component.
func TestEveryComponentIsAccepted(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(shared.deploy, "components"))
	if err != nil {
		t.Fatal(err)
	}
	common := []string{"admission", "admission-read-only", "flow-schema", "network-policy", "startup-taint"}
	sets := [][]string{
		append(slices.Clone(common), "node-identity", "cache"),
		append([]string{"pod-identity", "cross-namespace", "get"}, common...),
		{"pod-identity-before-1.35"},
	}
	for _, entry := range entries {
		if !slices.Contains(slices.Concat(sets...), entry.Name()) {
			t.Errorf("no set has the component %s", entry.Name())
		}
	}
	for _, set := range sets {
		t.Run(strings.Join(set, "+"), func(t *testing.T) {
			applied := mustKubectl(t, "apply", "--dry-run=server", "--validate=strict", "--output=name", "--kustomize="+kustomization(t, set...))
			if !strings.Contains(applied, "daemonset.apps/refvol-plugin") {
				t.Errorf("it has %q", applied)
			}
		})
	}
}
