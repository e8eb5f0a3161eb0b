package manifests

import (
	"context"
	"errors"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	taintPolicy = "refvol-startup-taint"
	// nodeA is the Node of the plugin's pod, nodeB another.
	nodeA, nodeB = "node-a", "node-b"
)

type nodePatch struct {
	node, patch string
	// says is in the refusal; none if the change is allowed.
	says string
}

func nodePatches() map[string]nodePatch {
	const ownOnly, metadata, spec = "may change its own Node only: its token is of node node-a", "metadata differs", "spec differs"
	const taints = "may change nothing of its Node but remove the taint csi.refvol.dev/agent-not-ready"
	return map[string]nodePatch{
		"the taint of one effect": {nodeA, `{"op":"remove","path":"/spec/taints/0"}`, ""},
		"the taint of each effect": {nodeA, `{"op":"remove","path":"/spec/taints/2"},
			{"op":"test","path":"/spec/taints/0/key","value":"csi.refvol.dev/agent-not-ready"},{"op":"remove","path":"/spec/taints/0"}`, ""},
		"nothing":               {nodeA, `{"op":"test","path":"/metadata/name","value":"node-a"}`, ""},
		"the managers":          {nodeA, `{"op":"replace","path":"/metadata/managedFields","value":[{}]}`, ""},
		"the other node":        {nodeB, `{"op":"remove","path":"/spec/taints/0"}`, ownOnly},
		"a new label":           {nodeA, `{"op":"add","path":"/metadata/labels/new","value":"x"}`, metadata},
		"no label":              {nodeA, `{"op":"remove","path":"/metadata/labels"}`, metadata},
		"an owner":              {nodeA, `{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Node","name":"node-b","uid":"x"}]}`, metadata},
		"unschedulable":         {nodeA, `{"op":"add","path":"/spec/unschedulable","value":true}`, spec},
		"another taint":         {nodeA, `{"op":"remove","path":"/spec/taints/1"}`, taints},
		"another taint's value": {nodeA, `{"op":"replace","path":"/spec/taints/1/value","value":"x"}`, taints},
		"every taint":           {nodeA, `{"op":"remove","path":"/spec/taints"}`, taints},
		"a new taint":           {nodeA, `{"op":"add","path":"/spec/taints/-","value":{"key":"new","effect":"NoExecute"}}`, taints},
		"the taint, worse":      {nodeA, `{"op":"replace","path":"/spec/taints/0/effect","value":"PreferNoSchedule"}`, taints},
		"the taint, renamed":    {nodeA, `{"op":"replace","path":"/spec/taints/0/key","value":"new"}`, taints},
		"the taint and a label": {nodeA, `{"op":"remove","path":"/spec/taints/0"},{"op":"add","path":"/metadata/labels/new","value":"x"}`, metadata},
	}
}

// TestStartupTaintPolicy: with the token of a plugin's pod, the startup taint of the pod's own
// Node can be removed, and nothing else of any Node be changed.
func TestStartupTaintPolicy(t *testing.T) {
	plugin := installTaintPolicy(t)
	for name, test := range nodePatches() {
		t.Run(name, func(t *testing.T) {
			err := plugin.patch(t.Context(), test)
			if test.says == "" {
				wantRefusal(t, err)
			} else {
				wantRefusal(t, err, test.says, "ValidatingAdmissionPolicy '"+taintPolicy+"'")
			}
		})
	}
	t.Run("the taint's manager", func(t *testing.T) { // which owns nothing else, so it goes with the taint
		must(shared.Client().CoreV1().Nodes().Patch(t.Context(), nodeA, types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/taints/1/value","value":"new"}]`), metav1.PatchOptions{FieldManager: "tainter"}))(t)
		wantRefusal(t, plugin.patch(t.Context(), nodePatches()["the taint of one effect"]))
	})
	t.Run("status", func(t *testing.T) {
		_, err := plugin.CoreV1().Nodes().Patch(t.Context(), nodeA, types.MergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
		if !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want no right to the status", err)
		}
	})
	t.Run("a token of no pod", func(t *testing.T) {
		unbound := nodeClient{clientWith(t, "")}
		wantRefusal(t, unbound.patch(t.Context(), nodePatches()["the taint of one effect"]), "may change its own Node only: its token is of no node")
	})
	t.Run("other users", func(t *testing.T) {
		admin := nodeClient{shared.Client()}
		for name, test := range nodePatches() {
			if err := admin.patch(t.Context(), test); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

type nodeClient struct{ kubernetes.Interface }

func (c nodeClient) patch(ctx context.Context, p nodePatch) error {
	_, err := c.CoreV1().Nodes().Patch(ctx, p.node, types.JSONPatchType, []byte("["+p.patch+"]"),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// installTaintPolicy installs the component, makes two Nodes and a pod of the plugin on one of
// them, and waits until the policy is in force. It returns a client with that pod's token.
func installTaintPolicy(t *testing.T) nodeClient {
	t.Helper()
	have(t, taintWorld)
	install(t, "startup-taint")
	settle(t)
	client := nodeClient{clientWith(t, "plugin-a")}
	harness.Eventually(t, soon, func() error {
		if err := client.patch(t.Context(), nodePatches()["a new label"]); err == nil || !strings.Contains(err.Error(), taintPolicy) {
			return errors.Join(errors.New("the policy is not in force"), err)
		}
		return nil
	})
	return client
}

func have(t *testing.T, manifests string) {
	t.Helper()
	must(shared.kubectlWith(t.Context(), []byte(manifests), "apply", "--filename=-"))(t)
	t.Cleanup(func() {
		must(shared.kubectlWith(context.WithoutCancel(t.Context()), []byte(manifests), "delete", "--filename=-", "--force"))(t)
	})
}

const taintWorld = `
{apiVersion: v1, kind: Node, metadata: {name: node-a, labels: {pool: a}}, spec: {taints: [
  {key: csi.refvol.dev/agent-not-ready, effect: NoSchedule}, {key: dedicated, value: db, effect: NoSchedule},
  {key: csi.refvol.dev/agent-not-ready, value: x, effect: NoExecute}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-b, labels: {pool: a}}, spec: {taints: [
  {key: csi.refvol.dev/agent-not-ready, effect: NoSchedule}, {key: dedicated, value: db, effect: NoSchedule},
  {key: csi.refvol.dev/agent-not-ready, value: x, effect: NoExecute}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: plugin-a, namespace: refvol-system}, spec: {
  nodeName: node-a, serviceAccountName: refvol-plugin, automountServiceAccountToken: false, containers: [{name: c, image: none}]}}
`

// clientWith returns a client with a token of the plugin's account that is bound to a pod, unless
// the pod's name is empty. It is good until the test ends.
func clientWith(t *testing.T, pod string) kubernetes.Interface {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod}
	}
	answer := must(shared.Client().CoreV1().ServiceAccounts(pluginNamespace).CreateToken(t.Context(), pluginAccount, request, metav1.CreateOptions{}))(t)
	config := rest.AnonymousClientConfig(shared.Config())
	config.BearerToken = answer.Status.Token
	return harness.ClientFor(t, config)
}
