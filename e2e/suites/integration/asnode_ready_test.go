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
	rbacv1 "k8s.io/api/rbac/v1"
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

// rulesExcept returns the rules that are of none of the resources.
func rulesExcept(rules []rbacv1.PolicyRule, resources ...string) []rbacv1.PolicyRule {
	return slices.DeleteFunc(rules, func(r rbacv1.PolicyRule) bool {
		return slices.ContainsFunc(resources, func(resource string) bool { return slices.Contains(r.Resources, resource) })
	})
}

// TestNeedsItsRights: the plugin says which right, token or node is wrong, as far as its flags need them.
func TestNeedsItsRights(t *testing.T) {
	t.Parallel()
	_, whole := pluginPod(t, harness.NodeName, asNodeRules(t))
	_, silent := pluginPod(t, harness.NodeName, rulesExcept(asNodeRules(t), "events"))
	_, reduced := pluginPod(t, harness.NodeName, rulesExcept(asNodeRules(t), "secrets"))
	_, powerless := pluginPod(t, harness.NodeName, rulesExcept(asNodeRules(t), "secrets", "pods", "nodes"))
	const (
		asNode, asPlugin, asPod = "--identity=node", "--identity=plugin", "--identity=pod"
		get, cache, across      = "--change-detection=Get", "--change-detection=Cache", "--cross-namespace"

		lacks  = "[-]rights: the plugin's account lacks rights in all namespaces that "
		others = "get of pods: grant them, or choose another identity"
		on     = "impersonate-on:associated-node:"
	)
	base := shared.kubeconfig
	for name, test := range map[string]struct {
		kubeconfig string
		args       []string
		// reasons are those for which the plugin is not ready.
		reasons []string
	}{
		"node":                     {whole, []string{asNode}, nil},
		"node, no rule for events": {silent, []string{asNode}, nil}, // volumes work
		"node, another": {whole, []string{asNode, "--node-name=" + otherNode}, []string{
			`the plugin's token is that of a pod on node "node-1", and --node-name is "node-2": it may impersonate its own node only`,
		}},
		"node, no rule for objects": {reduced, []string{asNode}, []string{
			lacks + asNode + " needs: " + on + "list of configmaps, " + on + "watch of configmaps, ", on + "list of secrets, " + on + "watch of secrets",
		}},
		"node, no rule for objects, Get":    {reduced, []string{asNode, get}, []string{"needs: " + on + "get of configmaps, " + on + "get of secrets"}},
		"node, no rule for the Node, Cache": {whole, []string{asNode, cache}, []string{"needs: " + on + "get of nodes"}},
		"node, no rule for the Node, Get":   {whole, []string{asNode, get}, nil},
		"node, no rule at all":              {powerless, []string{asNode}, []string{lacks + asNode + " needs: impersonate:associated-node of nodes, " + on + "get of pods, "}},
		"node, not a pod's": {shared.powerless, []string{asNode}, []string{
			`the plugin's credential, of "system:serviceaccount:refvol-system:powerless", is not bound to a pod`,
		}},
		"node, no account's": {shared.Kubeconfig(), []string{asNode}, []string{`the plugin's credential, of "admin", is not bound to a pod`}},

		"base": {base, []string{asPlugin}, nil},
		"none": {shared.powerless, []string{asPlugin}, []string{
			lacks + asPlugin + " needs: list of configmaps, watch of configmaps, list of secrets, watch of secrets, " + others,
		}},
		"get":                     {componentAccount(t, "get"), []string{asPlugin, get}, nil},
		"Get with the base":       {base, []string{asPlugin, get}, []string{lacks + asPlugin + " needs: get of configmaps, get of secrets: "}},
		"cache":                   {componentAccount(t, "cache"), []string{asPlugin, cache}, nil},
		"Cache with get":          {componentAccount(t, "get"), []string{asPlugin, cache}, []string{lacks + asPlugin + " needs: get of nodes: "}},
		"cross-namespace":         {componentAccount(t, "cross-namespace"), []string{asPlugin, across}, nil},
		"cross-namespace, base":   {base, []string{asPlugin, across}, []string{lacks + asPlugin + " needs: create of subjectaccessreviews: "}},
		"the pods' rights":        {componentAccount(t, "pod-identity"), []string{asPod}, nil},
		"none, the pods' instead": {shared.powerless, []string{asPod}, []string{lacks + asPod + " needs: " + others}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readyNode(t, harness.PluginOptions{Kubeconfig: test.kubeconfig, Args: test.args}).becomes(test.reasons...)
		})
	}
}

// TestAsNodeNeedsTheAPIServer has an API server that doesn't let the plugin read as its node, for
// each reason. Files of volumes that were published before stay.
func TestAsNodeNeedsTheAPIServer(t *testing.T) {
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
	for _, test := range []struct {
		mode, arg string
		reasons   []string
	}{
		{"Node,RBAC", "--emulated-version=1.35", []string{"that needs the feature gate ConstrainedImpersonation (on by default from Kubernetes 1.36 on)"}},
		{"Node,RBAC", "--feature-gates=ConstrainedImpersonation=false", []string{"that needs the feature gate ConstrainedImpersonation"}},
		{"RBAC", "--profiling=false", []string{"and --authorization-mode=Node,RBAC, and after a start it takes a moment", nodeUser(harness.NodeName)}},
	} {
		if err := c.RestartAPIServer(t.Context(), test.mode, test.arg); err != nil {
			t.Fatal(err)
		}
		n.mustKill()
		n.mustStart()
		n.becomes(test.reasons...)
		n.wantContent(v, "key", value)
	}
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
