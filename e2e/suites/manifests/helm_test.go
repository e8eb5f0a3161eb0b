package manifests

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const checkName = "refvol-uninstall-check"

// helm is the client of a release, and namespace the release's.
type helm struct {
	program, chart, namespace string
}

func newHelm(t *testing.T) helm {
	t.Helper()
	program, err := harness.BuildHelm(t.Context(), t.TempDir(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	// It stays: the API server has no controller that could delete it.
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "refvol-helm-"}}
	if own, err = shared.Client().CoreV1().Namespaces().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return helm{program: program, chart: filepath.Join(shared.deploy, "charts", "refvol"), namespace: own.Name}
}

// run runs helm as the cluster's admin. The error has what it printed.
func (h helm) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, h.program, append(args, "--namespace="+h.namespace)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "HOME="+shared.dir, "HELM_DATA_HOME="+shared.dir,
		"HELM_CONFIG_HOME="+shared.dir, "HELM_CACHE_HOME="+filepath.Join(shared.dir, "cache"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %q: %w: %s", args, err, out)
	}
	return nil
}

func (h helm) must(t *testing.T, args ...string) {
	t.Helper()
	if err := h.run(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// ofRelease returns the names of the objects of some kinds that the release has.
func ofRelease(t *testing.T, kinds string) string {
	t.Helper()
	return mustKubectl(t, "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name")
}

// wantNothingLeft wants no object of the release, nor of its hooks, but the namespace.
func (h helm) wantNothingLeft(t *testing.T) {
	t.Helper()
	const more = ",serviceaccounts,jobs"
	if left := ofRelease(t, kinds+more); left != "" {
		t.Errorf("left are %q", left)
	}
	left := mustKubectl(t, "get", kinds+more, "--all-namespaces", "--selector=app.kubernetes.io/name="+checkName, "--output=name")
	if left != "" {
		t.Errorf("left are %q", left)
	}
	if _, err := shared.Client().CoreV1().Namespaces().Get(t.Context(), h.namespace, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}
