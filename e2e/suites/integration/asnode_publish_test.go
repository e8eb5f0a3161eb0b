package integration

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// proxiedAsNode is an asNode behind a proxy.
type proxiedAsNode struct {
	asNode
	behind *proxied
}

func newProxiedAsNode(t *testing.T, args ...string) *proxiedAsNode {
	t.Helper()
	_, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
	behind := newProxiedAs(t, kubeconfig, faultproxy.Options{}, slices.Concat([]string{"--identity=node"}, args)...)
	return &proxiedAsNode{asNode{behind.node, harness.NodeName}, behind}
}

// reads returns the requests for ConfigMaps, Secrets and pods since forgetRequests, and fails the
// test if one of them had other rights than the node's.
func (n *proxiedAsNode) reads() []faultproxy.Request {
	n.t.Helper()
	var reads []faultproxy.Request
	for _, r := range n.behind.requests() {
		if r.Resource != "configmaps" && r.Resource != "secrets" && r.Resource != "pods" {
			continue
		}
		if r.User != nodeUser(harness.NodeName) {
			n.t.Errorf("%s of %v as %q", r.Verb, r.Object, r.User)
		}
		reads = append(reads, r)
	}
	return reads
}

// TestAsNode publishes volumes for each sort of native reference, and updates them.
func TestAsNode(t *testing.T) {
	for strategy, start := range map[string]func(*testing.T, ...string) *asNode{
		"Watch": newAsNode,
		"Cache": newAsNodeByCache,
		"Get": func(t *testing.T, args ...string) *asNode {
			return newAsNode(t, append(args, "--change-detection=Get")...)
		},
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			n := start(t, "--resync-interval=1s")
			volumes := map[*harness.Volume]string{} // with the object that each shows
			add := func(kind, name string, spec corev1.PodSpec, attributes map[string]string) {
				v := n.shown(spec, attributes)
				volumes[v] = kind + "/" + name
			}
			add("secret", "a", nativeSecret("a"), volumeSource())
			add("configmap", "a", nativeConfigMap("a"), volumeSource())
			add("secret", "b", nativeBoth("b", "b"), map[string]string{"volume": "native"})
			add("secret", "c", nativeSecret("c"), directly("secret", "c"))
			add("secret", "d", inEnvironment("secret", "d"), directly("secret", "d"))
			add("configmap", "d", inEnvironment("configmap", "d"), directly("configmap", "d"))
			add("secret", "e", corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "e"}}}, directly("secret", "e"))
			add("secret", "f", inEnvironment("secret", "f"), map[string]string{"sources": `[{podEnv: {container: main, path: env}}, {secret: {name: f}}]`})
			put := func(object string) string {
				value := n.canary()
				switch kind, name := object[:len(object)-2], object[len(object)-1:]; {
				case name == "b": // later sources win
					n.configMap(name, map[string]string{"other": n.canary()})
					n.secret(name, map[string]string{"key": value})
				case kind == "secret":
					n.secret(name, map[string]string{"key": value})
				default:
					n.configMap(name, map[string]string{"key": value})
				}
				return value
			}
			for v, object := range volumes {
				answer := n.publishing(v) // of an object that is late
				value := put(object)
				if err := n.answer(answer, soon); err != nil {
					t.Errorf("%s: %v", object, err)
					continue
				}
				n.wantContent(v, "key", value)
				n.arrives(v, "key", put(object), soon)
				n.mustUnpublish(v)
			}
			n.wantNothingLeft()
		})
	}
}

// TestAsNodeWithoutMirrorPod: the API server has no pod for a static pod until it accepts the mirror, which NodeRestriction
// refuses if it names Secrets. Until then its authorizer answers 403, as for a pod of another node, and no 404.
func TestAsNodeWithoutMirrorPod(t *testing.T) {
	t.Parallel()
	n := newAsNode(t, "--publish-wait=1s")
	n.secret("db", map[string]string{"password": n.canary()})
	static := n.volume(directly("secret", "db"))
	static.Unknown = true
	for range 2 {
		wantStatus(t, n.finalAnswer(static), codes.PermissionDenied, "read pod "+n.namespace+"/"+static.Pod+": ", "no relationship found between node")
	}
	n.wantNothingLeft()
}
