package suite

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// stolenToken returns the token of a plugin's pod, as its node has it.
func stolenToken(t *testing.T, plugin *corev1.Pod) string {
	t.Helper()
	files := "/var/lib/kubelet/pods/" + string(plugin.UID) + "/volumes/kubernetes.io~projected/*/token"
	token, err := exec.CommandContext(t.Context(), "docker", "exec", plugin.Spec.NodeName, "sh", "-c", "cat "+files).Output()
	if err != nil || len(token) == 0 {
		t.Fatalf("no token of %s: %v", plugin.Name, err)
	}
	return strings.TrimSpace(string(token))
}

// withToken returns a client with a token, which impersonates a user unless that is empty.
func (c *cluster) withToken(t *testing.T, token, user string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.Impersonate.UserName = token, user
	return harness.ClientFor(t, config)
}

// reads are requests for objects of one namespace, by what they ask for.
func reads(client kubernetes.Interface, namespace string) map[string]func(ctx context.Context, name string) error {
	only := func(name string) metav1.ListOptions {
		return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	}
	core := client.CoreV1()
	return map[string]func(context.Context, string) error{
		"list ConfigMap": func(ctx context.Context, name string) error {
			_, err := core.ConfigMaps(namespace).List(ctx, only(name))
			return err
		},
		"watch ConfigMap": func(ctx context.Context, name string) error {
			w, err := core.ConfigMaps(namespace).Watch(ctx, only(name))
			if err == nil {
				w.Stop()
			}
			return err
		},
		"list Secret": func(ctx context.Context, name string) error {
			_, err := core.Secrets(namespace).List(ctx, only(name))
			return err
		},
		"watch Secret": func(ctx context.Context, name string) error {
			w, err := core.Secrets(namespace).Watch(ctx, only(name))
			if err == nil {
				w.Stop()
			}
			return err
		},
	}
}

// With the token of a plugin's pod, taken from its node, the API server lets nobody have more than
// that node's kubelet may read. When the pod goes the token is worth nothing.
func TestNodeIdentityRights(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	other := n.worker(t)
	n.wantNodeAuthorizer(t)
	for _, name := range []string{"ours", "theirs"} {
		n.createConfigMap(name, object{"key": "text"})
		n.createSecret(name, object{"key": canary("text")})
	}
	naming := func(name string) corev1.Volume {
		return view{projected: true, sources: []corev1.VolumeProjection{source(kindConfigMap, name), source(kindSecret, name)}}.native("unmounted")
	}
	n.start(onNode(withUnmounted(newPod("ours"), naming("ours")), node))
	n.start(onNode(withUnmounted(newPod("theirs"), naming("theirs")), other))

	plugin := n.nodePlugin(t, node)
	token := stolenToken(t, plugin)
	itself, asNode, asOther := n.withToken(t, token, ""), n.withToken(t, token, "system:node:"+node), n.withToken(t, token, "system:node:"+other)
	for what, read := range reads(asNode, n.name) {
		// The authorizer hears of the pod by a watch of its own.
		eventually(t, podTimeout, what, func(ctx context.Context) error { return read(ctx, "ours") })
		n.wantForbidden(what+" that only another node's pod names", read(t.Context(), "theirs"))
	}
	for what, read := range reads(itself, n.name) {
		n.wantForbidden(what+" as itself", read(t.Context(), "ours"))
	}
	for what, read := range reads(asOther, n.name) {
		n.wantForbidden(what+" as the other node", read(t.Context(), "theirs"))
	}
	ctx := t.Context()
	get := func(client kubernetes.Interface, pod string) error {
		_, err := client.CoreV1().Pods(n.name).Get(ctx, pod, metav1.GetOptions{})
		return err
	}
	if err := get(asNode, "ours"); err != nil {
		t.Errorf("the pod on the node: %v", err)
	}
	_, all := asNode.CoreV1().Secrets(n.name).List(ctx, metav1.ListOptions{})
	_, itsNode := asNode.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	_, pods := asNode.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{})
	for what, err := range map[string]error{
		"all Secrets of the namespace": all, "the Node": itsNode, "the namespace's pods": pods,
		"the pod on the other node": get(asNode, "theirs"), "the pod, as itself": get(itself, "ours"),
		"the token of an account": n.tokenAsNode(asNode),
	} {
		n.wantForbidden(what, err)
	}

	n.searchBefore(t, plugin)
	if err := n.client.CoreV1().Pods(plugin.Namespace).Delete(ctx, plugin.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	(&pod{n, plugin}).awaitGone(t)
	eventually(t, podTimeout, "end of the token", func(ctx context.Context) error {
		if err := reads(asNode, n.name)["list Secret"](ctx, "ours"); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("with the token of a plugin that is gone: %w", errors.Join(err, errors.New("not unauthorized")))
		}
		return nil
	})
}

// tokenAsNode asks for a token of the namespace's account, as a kubelet may for its pods.
func (n *namespace) tokenAsNode(client kubernetes.Interface) error {
	_, err := client.CoreV1().ServiceAccounts(n.name).CreateToken(n.t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	return err
}

func (n *namespace) wantForbidden(what string, err error) {
	n.t.Helper()
	if !apierrors.IsForbidden(err) {
		n.t.Errorf("%s: got %v, want it forbidden", what, err)
	}
}

// wantNodeAuthorizer wants the API server to judge nodes as clusters do, but for the feature gate that
// Kubernetes 1.35 ships as an alpha.
func (n *namespace) wantNodeAuthorizer(t *testing.T) {
	t.Helper()
	servers, err := n.client.CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "component=kube-apiserver"})
	if err != nil || len(servers.Items) == 0 {
		t.Fatalf("%v API servers: %v", servers, err)
	}
	command := strings.Join(servers.Items[0].Spec.Containers[0].Command, " ")
	shipped := n.version(t).LessThan(version.MustParseGeneric("1.36")) || !strings.Contains(command, "ConstrainedImpersonation")
	if !strings.Contains(command, "--authorization-mode=Node,RBAC") || !shipped {
		t.Errorf("the API server runs as %q, want the modes Node and RBAC, and the gate as shipped", command)
	}
}
