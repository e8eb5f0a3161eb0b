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
	"github.com/refvol/refvol/internal/must"
)

// TestFromKustomizeToHelmAndBack goes the way of docs/install.md. No object is made anew, and the plugins' pods stay as they are.
func TestFromKustomizeToHelmAndBack(t *testing.T) {
	if harness.Scaled(true, false) {
		t.Skipf("it runs in the long form (%s=1), because it builds helm", harness.LongVariable)
	}
	program := must.Get(harness.BuildHelm(t.Context(), t.TempDir(), os.Stderr))(t)
	helm := func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, program, append(args, "--namespace="+pluginNamespace)...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "HOME="+shared.dir, "HELM_DATA_HOME="+shared.dir,
			"HELM_CONFIG_HOME="+shared.dir, "HELM_CACHE_HOME="+filepath.Join(shared.dir, "cache"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("helm %q: %w: %s", args, err, out)
		}
		return err
	}
	components := []string{"node-identity", "admission", "startup-taint", "flow-schema", "metrics", "network-policy"}
	havePrometheusKinds(t)
	install(t, components...)
	t.Cleanup(func() { // it removes the records, if the test ends on its way
		ctx := context.WithoutCancel(t.Context())
		err := helm(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found")
		// The account stays for other tests, without Helm's label.
		_, unlabelled := shared.kubectl(ctx, "--namespace="+pluginNamespace, "label", "serviceaccount", pluginAccount, "app.kubernetes.io/managed-by-")
		must.Do(t, errors.Join(err, unlabelled))
	})
	const all = kinds + ",podmonitors,prometheusrules"
	objects := func() string {
		return mustKubectl(t, "get", all, "--all-namespaces", "--selector=app.kubernetes.io/name=refvol-plugin",
			"--output=jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}\n{end}")
	}
	template := func() corev1.PodTemplateSpec {
		t.Helper()
		plugin := must.Get(shared.Client().AppsV1().DaemonSets(pluginNamespace).Get(t.Context(), "refvol-plugin", metav1.GetOptions{}))(t)
		return plugin.Spec.Template
	}
	first, before := objects(), template()
	want := func(after string) {
		t.Helper()
		if now := objects(); now != first {
			t.Errorf("after %s there are\n%s\nwant\n%s", after, now, first)
		}
		if now := template(); !reflect.DeepEqual(now, before) {
			t.Errorf("after %s the plugin's pods are made by\n%+v\nwant\n%+v", after, now, before)
		}
	}
	must.Do(t, helm(t.Context(), "install", "refvol", filepath.Join(shared.deploy, "charts", "refvol"), "--take-ownership", "--force-conflicts",
		"--set=admission.enabled=true,startupTaint.enabled=true,flowSchema.enabled=true,metrics.enabled=true,networkPolicy.enabled=true"))
	want("helm install")
	released := mustKubectl(t, "get", all, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name")
	if strings.Count(released, "\n") != strings.Count(first, "\n") {
		t.Errorf("the release has\n%s\nwant\n%s", released, first)
	}
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, components...))
	for _, command := range documented(t, "install.md", "--namespace refvol-system delete secrets") {
		mustKubectl(t, command...)
	}
	want("going back")
	if err := helm(t.Context(), "status", "refvol"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("after going back: %v, want no release", err)
	}
}
