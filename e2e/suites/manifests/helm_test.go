package manifests

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

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

// wantNothingLeft wants no object of the release but the namespace.
func (h helm) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := ofRelease(t, kinds+",serviceaccounts,jobs"); left != "" {
		t.Errorf("left are %q", left)
	}
	if _, err := shared.Client().CoreV1().Namespaces().Get(t.Context(), h.namespace, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestFromKustomizeToHelmAndBack goes the way of docs/install.md. No object is made anew, and the plugins' pods stay as they are.
func TestFromKustomizeToHelmAndBack(t *testing.T) {
	h := newHelm(t)
	h.namespace = pluginNamespace
	components := []string{"node-identity", "admission", "startup-taint", "flow-schema"}
	install(t, components...)
	t.Cleanup(func() { // it removes the records, if the test ends on its way
		ctx := context.WithoutCancel(t.Context())
		err := h.run(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found")
		// The account stays for other tests, without Helm's label.
		_, unlabelled := shared.kubectl(ctx, "--namespace="+pluginNamespace, "label", "serviceaccount", pluginAccount, "app.kubernetes.io/managed-by-")
		if err := errors.Join(err, unlabelled); err != nil {
			t.Error(err)
		}
	})
	objects := func() string {
		return mustKubectl(t, "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin",
			"--output=jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}\n{end}")
	}
	template := func() corev1.PodTemplateSpec {
		t.Helper()
		plugin, err := shared.Client().AppsV1().DaemonSets(pluginNamespace).Get(t.Context(), "refvol-plugin", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return plugin.Spec.Template
	}
	all, before := objects(), template()
	want := func(after string) {
		t.Helper()
		if now := objects(); now != all {
			t.Errorf("after %s there are\n%s\nwant\n%s", after, now, all)
		}
		if now := template(); !reflect.DeepEqual(now, before) {
			t.Errorf("after %s the plugin's pods are made by\n%+v\nwant\n%+v", after, now, before)
		}
	}
	toHelm := []string{
		"install", "refvol", h.chart, "--take-ownership", "--force-conflicts",
		"--set=admission.enabled=true,startupTaint.enabled=true,flowSchema.enabled=true",
	}
	h.must(t, toHelm...)
	want("helm install")
	if len(strings.Split(ofRelease(t, kinds), "\n")) != len(strings.Split(all, "\n")) {
		t.Errorf("the release has\n%s\nwant\n%s", ofRelease(t, kinds), all)
	}
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
	for _, command := range documented(t, "install.md", "--namespace refvol-system delete secrets") {
		mustKubectl(t, command...)
	}
	want("going back")
	if err := h.run(t.Context(), "status", "refvol"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("after going back: %v, want no release", err)
	}
}
