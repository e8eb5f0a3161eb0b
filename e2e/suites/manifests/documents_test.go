package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// documented returns the arguments of the kubectl commands of a document that begin with verb.
func documented(t *testing.T, document, verb string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(shared.deploy, "..", "docs", document))
	if err != nil {
		t.Fatal(err)
	}
	var commands [][]string
	for _, line := range regexp.MustCompile(`(?m)^ {4,}kubectl (`+verb+` .*)$`).FindAllStringSubmatch(string(text), -1) {
		commands = append(commands, strings.Fields(line[1]))
	}
	if len(commands) == 0 {
		t.Fatalf("%s has no command %q", document, verb)
	}
	return commands
}

// TestSwitchKeepsRights switches from the plugin's identity to the node's by the commands of
// docs/identity.md: the plugins that are still the old ones may publish until the last command.
func TestSwitchKeepsRights(t *testing.T) {
	asked := func(verb, kind string) error {
		return allowed(t.Context(), pluginUser, pluginGroups(), authorizationv1.ResourceAttributes{Verb: verb, Resource: kind, Namespace: "default"})
	}
	old := func() error {
		for _, kind := range []string{"configmaps", "secrets"} {
			for _, verb := range []string{"list", "watch"} {
				if err := asked(verb, kind); err != nil {
					return err
				}
			}
		}
		return asked("get", "pods")
	}
	install(t)
	harness.Eventually(t, soon, old)
	for _, command := range documented(t, "identity.md", "create") {
		mustKubectl(t, command...)
	}
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, "node-identity"))
	settle(t)
	if err := old(); err != nil {
		t.Error(err)
	}
	for _, command := range documented(t, "identity.md", "delete") {
		mustKubectl(t, command...)
	}
	settle(t)
	for _, right := range [][2]string{{"list", "secrets"}, {"get", "configmaps"}, {"get", "pods"}} {
		if err := asked(right[0], right[1]); err == nil {
			t.Errorf("in the end the account may still %s %s", right[0], right[1])
		}
	}
}

// TestQuotaOfCriticalPods has an API server refuse critical pods where no quota is, as GKE's does, and
// takes the command of docs/install.md.
func TestQuotaOfCriticalPods(t *testing.T) {
	config := filepath.Join(t.TempDir(), "admission.yaml")
	const limited = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
`
	if err := os.WriteFile(config, []byte(limited), 0o600); err != nil {
		t.Fatal(err)
	}
	binaries, err := harness.BuildControlPlane(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(t.Context(), controlplane.Options{
		Binaries: binaries, APIServerArgs: []string{"--allow-privileged=true", "--admission-control-config-file=" + config},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	kubectl := func(args ...string) {
		if _, err := shared.kubectl(t.Context(), append(args, "--kubeconfig="+c.Kubeconfig())...); err != nil {
			t.Fatal(err)
		}
	}
	kubectl("apply", "--kustomize="+kustomization(t))
	daemonSet, err := c.Client().AppsV1().DaemonSets(pluginNamespace).Get(t.Context(), pluginAccount, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// A controller would make it, with the name of the node.
	create := func() error {
		template := daemonSet.Spec.Template
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "plugin-", Labels: template.Labels}, Spec: template.Spec}
		_, err := c.Client().CoreV1().Pods(pluginNamespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	}
	harness.Eventually(t, soon, func() error { // the API server makes the priority classes after its start
		if err := create(); err == nil || !strings.Contains(err.Error(), "insufficient quota to match these scopes") {
			return fmt.Errorf("without a quota: %w", err)
		}
		return nil
	})
	for _, command := range documented(t, "install.md", "--namespace refvol-system create quota") {
		kubectl(command...)
	}
	countQuotas(t, c)
	harness.Eventually(t, soon, create)
}

// countQuotas does what the controller of quotas does first.
func countQuotas(t *testing.T, c *controlplane.ControlPlane) {
	t.Helper()
	client := c.Client().CoreV1().ResourceQuotas(pluginNamespace)
	quotas, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range quotas.Items {
		quota := &quotas.Items[i]
		quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}}
		if _, err := client.UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
