package manifests

import (
	"context"
	"errors"
	"fmt"
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

// install applies the base with components until the end of the test, and waits until none of their
// policies is in force any more: the next test would take it for its own.
func install(t *testing.T, components ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := shared.kubectl(ctx, "delete", "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin", kinds); err != nil {
			t.Error(err)
		}
		if err := harness.Poll(ctx, soon, pace, func() error { return untouched(ctx) }); err != nil {
			t.Error(err)
		}
	})
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
}

// untouched returns an error if a policy refuses or changes a pod that each of the components' would
// refuse or change.
func untouched(ctx context.Context) error {
	pod, err := created(ctx, podWith("sentinel", writable(nil)))
	if err != nil {
		return fmt.Errorf("a policy is in force still: %w", err)
	}
	if pod.Spec.Volumes[0].CSI.ReadOnly != nil {
		return errors.New("the policy that sets readOnly is in force still")
	}
	return nil
}

// TestEveryComponentIsAccepted: the API server takes all objects of sets that together have every
// component.
func TestEveryComponentIsAccepted(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(shared.deploy, "components"))
	if err != nil {
		t.Fatal(err)
	}
	common := []string{"admission", "admission-read-only", "flow-schema", "live", "live-node-selector", "metrics", "network-policy", "restart", "restart-metrics", "staged", "startup-taint"}
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
	definePrometheus(t)
	for _, set := range sets {
		t.Run(strings.Join(set, "+"), func(t *testing.T) {
			applied := mustKubectl(t, "apply", "--dry-run=server", "--validate=strict", "--output=name", "--kustomize="+kustomization(t, set...))
			if !strings.Contains(applied, "daemonset.apps/refvol-plugin") {
				t.Errorf("it has %q", applied)
			}
		})
	}
}

// definePrometheus defines the kinds of the Prometheus operator: their fields are compared with the
// operator's own types in the tests of deploy.
func definePrometheus(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "definitions.yaml")
	if err := os.WriteFile(file, []byte(harness.PrometheusKinds), 0o600); err != nil {
		t.Fatal(err)
	}
	mustKubectl(t, "apply", "--filename="+file)
	mustKubectl(t, "wait", "--for=condition=Established", "--timeout=1m", "--filename="+file)
	t.Cleanup(func() {
		if _, err := shared.kubectl(context.WithoutCancel(t.Context()), "delete", "--filename="+file); err != nil {
			t.Error(err)
		}
	})
}
