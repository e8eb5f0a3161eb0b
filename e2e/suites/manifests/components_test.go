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
	"time"

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
	dir := must(os.MkdirTemp(shared.dir, "kustomization-"))(t)
	fatal(t, harness.Kustomization(dir, components...))
	return dir
}

// install applies the base with components until the end of the test, and waits until none of their
// policies is in force any more: the next test would take it for its own.
func install(t *testing.T, components ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		must(shared.kubectl(ctx, "delete", "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin", kinds))(t)
		fatal(t, harness.Poll(ctx, soon, 50*time.Millisecond, func() error { return untouched(ctx) }))
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
	entries := must(os.ReadDir(filepath.Join(shared.deploy, "components")))(t)
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
	// The fields of the Prometheus operator's kinds are compared with the operator's own types in the tests of deploy.
	have(t, harness.PrometheusKinds)
	mustKubectl(t, "wait", "--for=condition=Established", "--timeout=1m", "customresourcedefinitions", "--all")
	for _, set := range sets {
		t.Run(strings.Join(set, "+"), func(t *testing.T) {
			applied := mustKubectl(t, "apply", "--dry-run=server", "--validate=strict", "--output=name", "--kustomize="+kustomization(t, set...))
			if !strings.Contains(applied, "daemonset.apps/refvol-plugin") {
				t.Errorf("it has %q", applied)
			}
		})
	}
}
