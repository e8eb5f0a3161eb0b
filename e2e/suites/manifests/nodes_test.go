package manifests

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
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
		must.Get(shared.Client().CoreV1().Nodes().Patch(t.Context(), nodeA, types.JSONPatchType,
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
	must.Get(shared.kubectlWith(t.Context(), []byte(manifests), "apply", "--filename=-"))(t)
	t.Cleanup(func() {
		must.Get(shared.kubectlWith(context.WithoutCancel(t.Context()), []byte(manifests), "delete", "--filename=-", "--force"))(t)
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
	answer := must.Get(shared.Client().CoreV1().ServiceAccounts(pluginNamespace).CreateToken(t.Context(), pluginAccount, request, metav1.CreateOptions{}))(t)
	config := rest.AnonymousClientConfig(shared.Config())
	config.BearerToken = answer.Status.Token
	return harness.ClientFor(t, config)
}

const nodeIdentityPolicy = "refvol-node-identity"

// naming returns the spec of a pod that names an object NAME in one place.
func naming(place, name string) string {
	return "spec: {" + strings.ReplaceAll(places()[place], "NAME", name) + "}"
}

func places() map[string]string {
	all := map[string]string{
		"configMapRef":                         "containers: [{name: c, envFrom: [{configMapRef: {name: NAME}}]}]",
		"configMapKeyRef of an init container": "initContainers: [{name: i, image: none, env: [{name: A, value: x}, {name: B, valueFrom: {configMapKeyRef: {name: NAME, key: k}}}]}]",
		"secretRef of an init container":       "initContainers: [{name: i, image: none, envFrom: [{secretRef: {name: NAME}}]}]",
		"secretKeyRef":                         "containers: [{name: c, env: [{name: A, value: x}, {name: B, valueFrom: {secretKeyRef: {name: NAME, key: k}}}]}]",
		"imagePullSecrets":                     "imagePullSecrets: [{name: NAME}]",
	}
	for volume, source := range map[string]string{
		"configMap":            "configMap: {name: NAME}",
		"projected configMap":  "projected: {sources: [{downwardAPI: {}}, {configMap: {name: NAME}}]}",
		"secret":               "secret: {secretName: NAME}",
		"projected secret":     "projected: {sources: [{downwardAPI: {}}, {secret: {name: NAME}}]}",
		"none":                 "emptyDir: {sizeLimit: 1Mi}",
		"azureFile":            "azureFile: {secretName: NAME, shareName: s}",
		"cephfs":               "cephfs: {monitors: [m], secretRef: {name: NAME}}",
		"cinder":               "cinder: {volumeID: v, secretRef: {name: NAME}}",
		"flexVolume":           "flexVolume: {driver: d, secretRef: {name: NAME}}",
		"rbd":                  "rbd: {monitors: [m], image: i, secretRef: {name: NAME}}",
		"scaleIO":              "scaleIO: {gateway: g, system: s, volumeName: v, secretRef: {name: NAME}}",
		"iscsi":                "iscsi: {targetPortal: 1.2.3.4, iqn: 'iqn.2001-04.com.example:storage', lun: 0, chapAuthSession: true, secretRef: {name: NAME}}",
		"storageos":            "storageos: {volumeName: v, secretRef: {name: NAME}}",
		"nodePublishSecretRef": "csi: {driver: csi.example.com, nodePublishSecretRef: {name: NAME}}",
	} {
		all[volume] = "volumes: [{name: native, " + source + "}]"
	}
	return all
}

// TestNodeIdentityPolicy has the API server judge pods with the policy in force.
func TestNodeIdentityPolicy(t *testing.T) {
	pods, own := shared.Client().CoreV1().Pods(consumer), inline(attributes{"configMap": "app"})
	old := must.Get(pods.Create(t.Context(), podWith("old", own), metav1.CreateOptions{}))(t)
	install(t, "node-identity")
	awaitRefusal(t, podWith("sentinel", own), "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'")
	t.Run("names", wantsNames)
	t.Run("sources", seesKindsInSources)
	t.Run("others", func(t *testing.T) { leavesOthers(t, old) })
}

// wantsNames has pods whose spec names an object somewhere, or not, and whose volume
// names it, or another: the policy refuses those whose spec does not name what the volume shows.
func wantsNames(t *testing.T) {
	for place := range places() {
		for _, named := range []string{"app", "another"} {
			for attribute, kind := range map[string]volume.Kind{"configMap": volume.ConfigMap, "secret": volume.Secret} {
				created := merged(podWith("app", inline(attributes{attribute: "app"})), naming(place, named))
				shown := volume.Ref{Kind: kind, Namespace: consumer, Name: "app"}
				err := try(t.Context(), created)
				if slices.Contains(pod.Refs(&created.Spec, consumer), shown) {
					wantRefusal(t, err)
				} else {
					wantRefusal(t, err, "ValidatingAdmissionPolicy '"+nodeIdentityPolicy+"'", "volume settings: "+attribute+
						": Forbidden: the pod's spec does not name "+shown.String()+" itself, and this node's plugin runs with --identity=node: "+
						"add a volume of the pod that names it, and show that by a volume source")
				}
				if t.Failed() {
					t.Fatalf("%s names %s, and the volume shows %s", place, named, shown)
				}
			}
		}
	}
}

// seesKindsInSources: in YAML the policy sees only of which kind there is an object,
// and refuses it if the spec names none of that kind. The plugin sees the rest.
func seesKindsInSources(t *testing.T) {
	const noConfigMap, noSecret = "sources: Forbidden: the pod's spec names no ConfigMap itself", "sources: Forbidden: the pod's spec names no Secret itself"
	for sources, says := range map[string][]string{
		"- configMap: {name: app}":                                 {noConfigMap},
		"[{configMap: {name: app}}]":                               {noConfigMap},
		`[{"configMap": {"name": "app"}}]`:                         {noConfigMap},
		`[{"configMap":{"name":"app"}}]`:                           {noConfigMap},
		"- secret:\n    name: app":                                 {noSecret},
		"- env: {path: e, envFrom: [{configMapRef: {name: app}}]}": {noConfigMap},
		"- env:\n    path: e\n    env:\n    - name: A\n      valueFrom:\n        secretKeyRef: {name: app, key: k}": {noSecret},
		"- volume: {name: secret}":                         nil,
		"- volume: {name: native} # a configMap, a secret": nil,
		"- podEnv: {path: configMap.env, container: c}":    nil,
		"- configMap: {name: kube-root-ca.crt}":            nil, // which the token's volume names
		`[{"config\u004dap": {"name": "app"}}]`:            nil, // which the plugin refuses
	} {
		err := try(t.Context(), podWith("app", inline(attributes{"sources": sources})))
		wantRefusal(t, err, says...)
		// An object of that kind that the spec names may be the one.
		pod := merged(podWith("app", inline(attributes{"sources": sources})), naming("configMap", "x"))
		wantRefusal(t, try(t.Context(), merged(pod, naming("secretKeyRef", "x"))))
		if t.Failed() {
			t.Fatalf("sources %q", sources)
		}
	}
}

// leavesOthers: other pods, and volumes of the driver that show what the pod itself names, come and go as before.
func leavesOthers(t *testing.T, old *corev1.Pod) {
	leavesAlone(t, old)
	foreign := inline(attributes{"configMap": "app"})
	foreign.CSI.Driver = "csi.example.com"
	for _, pod := range []*corev1.Pod{
		podWith("app"), podWith("app", foreign), podWith("app", inline(nil)), podWith("app", inline(attributes{"volume": "native"})),
		podWith("app", repeat(20, attributes{"sources": "#" + strings.Repeat("configMap ", volume.MaxAttributesSize/10-1)})...),
	} {
		wantRefusal(t, try(t.Context(), pod))
	}
	several := podWith("app", inline(attributes{"configMap": "app"}), inline(attributes{"volume": "native"}), inline(attributes{"configMap": "more"}))
	wantRefusal(t, try(t.Context(), several), "volume settings: ", `"default/app"`, "; volume settings-2: ", `"default/more"`)
}
