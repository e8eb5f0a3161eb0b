package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// readyNode starts a plugin that says on a port whether it is ready, without a kubelet that registers it.
func readyNode(t *testing.T, o harness.PluginOptions) *node {
	t.Helper()
	o.Args = slices.Concat([]string{"--identity=node", "--registration-dir=", anyPort}, o.Args)
	return newNodeWith(t, o)
}

// becomes waits until the plugin is ready, or not ready for the reasons.
func (n *node) becomes(reasons ...string) {
	n.t.Helper()
	harness.Eventually(n.t, soon, func() error {
		err := n.ready()
		switch {
		case (err == nil) != (len(reasons) == 0):
			return fmt.Errorf("ready: %w, want %q", errors.Join(err), reasons)
		case err == nil:
			return nil
		case strings.Count(err.Error(), "\n") != 3:
			return fmt.Errorf("%q is not a line for each condition", err)
		}
		for _, reason := range reasons {
			if !strings.Contains(err.Error(), reason) {
				return fmt.Errorf("ready: %q, want %q in it", err, reason)
			}
		}
		return nil
	})
}

// TestNeedsItsRights: the plugin says which right, token or node is wrong, as far as its identity needs them.
func TestNeedsItsRights(t *testing.T) {
	t.Parallel()
	_, whole := pluginPod(t, harness.NodeName, asNodeRules(t))
	const lacks = "[-]rights: the plugin's account lacks rights in all namespaces that "
	for name, test := range map[string]struct {
		kubeconfig string
		args       []string
		// reasons are those for which the plugin is not ready.
		reasons []string
	}{
		"node": {whole, []string{"--identity=node"}, nil},
		"node, another": {whole, []string{"--identity=node", "--node-name=" + otherNode}, []string{
			`the plugin's token is that of a pod on node "node-1", and --node-name is "node-2": it may impersonate its own node only`,
		}},
		"node, not a pod's": {shared.powerless, []string{"--identity=node"}, []string{
			`the plugin's credential, of "system:serviceaccount:refvol-system:powerless", is not bound to a pod`,
		}},
		"none": {shared.powerless, []string{"--identity=plugin"}, []string{
			lacks + "--identity=plugin needs: list of configmaps, watch of configmaps, list of secrets, watch of secrets, get of pods: grant them, or choose another identity",
		}},
		"pod": {componentAccount(t, "pod-identity"), []string{"--identity=pod"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readyNode(t, harness.PluginOptions{Kubeconfig: test.kubeconfig, Args: test.args}).becomes(test.reasons...)
		})
	}
}

// TestAsNodeNeedsTheAPIServer has an API server that doesn't let the plugin read as its node. Files of
// volumes that were published before stay.
func TestAsNodeNeedsTheAPIServer(t *testing.T) {
	needsLong(t) // it has a control plane of its own
	t.Parallel()
	binaries, err := harness.BuildControlPlane(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(t.Context(), controlplane.Options{Binaries: binaries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := harness.GrantAsNode(t.Context(), c, kubeconfig); err != nil {
		t.Fatal(err)
	}
	n := readyNode(t, harness.PluginOptions{Kubeconfig: kubeconfig, Pods: c})
	n.becomes()
	secrets := c.Client().CoreV1().Secrets(metav1.NamespaceDefault)
	value := n.canary()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"key": value}}
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v := shownBy(t, c, metav1.NamespaceDefault, nativeSecret("db"), volumeSource())
	n.publishes(v, soon)
	if err := c.RestartAPIServer(t.Context(), "Node,RBAC", "--feature-gates=ConstrainedImpersonation=false"); err != nil {
		t.Fatal(err)
	}
	n.mustKill()
	n.mustStart()
	n.becomes("that needs the feature gate ConstrainedImpersonation (on by default from Kubernetes 1.36 on)")
	n.wantContent(v, "key", value)
	// What the running plugin showed stays too, and is updated again when the API server is well.
	if err := c.RestartAPIServer(t.Context(), "Node,RBAC"); err != nil {
		t.Fatal(err)
	}
	n.becomes()
	value = n.canary()
	secret.StringData["key"] = value
	if _, err := secrets.Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.arrives(v, "key", value, healed)
	n.mustUnpublish(v)
	n.wantMounts(0)
}
