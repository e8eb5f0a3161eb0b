package consent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/world"
	"github.com/refvol/refvol/internal/must"
)

// pluginNamespace is where the accounts are.
const pluginNamespace = "refvol-system"

// otherNode is a node that no plugin of these tests is on.
const otherNode = "node-2"

// pluginPod makes an account for plugins that read as their node, a pod of it on a node, and a kubeconfig with a token that is bound to the
// pod.
func pluginPod(t *testing.T, nodeName string) (pod *corev1.Pod, kubeconfig string) {
	t.Helper()
	name, kubeconfig := lab.NewAccount(t, "node-identity")
	pod = lab.Schedule(t, pluginNamespace, corev1.PodSpec{ServiceAccountName: name, NodeName: nodeName})
	must.Do(t, lab.WriteKubeconfig(kubeconfig, must.Get(lab.PodToken(t.Context(), pod, time.Hour))(t)))
	return pod, kubeconfig
}

// nodeUser is whom the plugins of these tests impersonate.
func nodeUser(name string) string { return "system:node:" + name }

// request is one of the plugin's, or one that it must not be able to make. Without a name it is for all objects.
type request struct{ verb, resource, namespace, name string }

func (r request) send(ctx context.Context, c kubernetes.Interface) error {
	get := c.CoreV1().RESTClient().Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.resource)
	if r.verb == "get" {
		return get.Name(r.name).Do(ctx).Error()
	}
	if r.name != "" {
		get = get.Param("fieldSelector", "metadata.name="+r.name)
	}
	if r.verb == "list" {
		return get.Do(ctx).Error()
	}
	body, err := get.Param("watch", "true").Stream(ctx)
	if err == nil {
		err = body.Close()
	}
	return err
}

func getPod(pod *corev1.Pod) request { return request{"get", "pods", pod.Namespace, pod.Name} }

// readsOf returns the requests of a plugin for the objects of a name.
func readsOf(namespace, name string) []request {
	return []request{
		{"get", "secrets", namespace, name},
		{"list", "secrets", namespace, name},
		{"watch", "secrets", namespace, name},
		{"list", "configmaps", namespace, name},
		{"watch", "configmaps", namespace, name},
	}
}

// scheduleOf makes a pod on a node whose spec names the ConfigMap and the Secret of a name, which nobody mounts.
func scheduleOf(t *testing.T, namespace, name, nodeName string) *corev1.Pod {
	t.Helper()
	ref := corev1.LocalObjectReference{Name: name}
	both := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref}}, {Secret: &corev1.SecretProjection{LocalObjectReference: ref}},
	}}}
	return lab.Schedule(t, namespace, corev1.PodSpec{NodeName: nodeName, Volumes: []corev1.Volume{{Name: "native", VolumeSource: both}}})
}

// TestRightsAsNode sends, with the token of a plugin's pod, what the plugin sends and what it must not get, to a real API server.
func TestRightsAsNode(t *testing.T) {
	t.Parallel()
	own, kubeconfig := pluginPod(t, harness.NodeName)
	_, elsewhere := pluginPod(t, otherNode)
	ns := lab.NewNamespace(t)
	for _, name := range []string{"here", "there", "nowhere"} {
		meta := metav1.ObjectMeta{Name: name}
		_, err := lab.Client().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		_, err2 := lab.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		must.Do(t, errors.Join(err, err2))
	}
	here, there := scheduleOf(t, ns, "here", harness.NodeName), scheduleOf(t, ns, "there", otherNode)

	n1, n2 := nodeUser(harness.NodeName), nodeUser(otherNode)
	all, node := request{"list", "secrets", ns, ""}, request{"get", "nodes", "", harness.NodeName}
	for _, test := range []struct {
		token, user string
		allowed     bool
		requests    []request
	}{
		{kubeconfig, n1, true, append(readsOf(ns, "here"), getPod(own), getPod(here))},
		{kubeconfig, "", false, append(readsOf(ns, "here"), getPod(own), getPod(here), all, node)},
		{kubeconfig, n1, false, slices.Concat(readsOf(ns, "there"), readsOf(ns, "nowhere"), readsOf(ns, "absent"), []request{getPod(there), all, node})},
		{kubeconfig, n2, false, slices.Concat(readsOf(ns, "there"), readsOf(ns, "here"), []request{getPod(there)})},
		// A token from another node is worth nothing for what only this node's pods name.
		{elsewhere, n1, false, append(readsOf(ns, "here"), getPod(here))},
		{elsewhere, n2, false, append(readsOf(ns, "here"), getPod(here))},
		{elsewhere, n2, true, append(readsOf(ns, "there"), getPod(there))},
	} {
		client := world.ClientOf(t, test.token, test.user)
		for _, r := range test.requests {
			// The authorizer hears of the pods by a watch.
			harness.Eventually(t, world.Soon, func() error {
				if err := r.send(t.Context(), client); test.allowed != (err == nil) || !test.allowed && !apierrors.IsForbidden(err) {
					return fmt.Errorf("%v as %q: %v, want it to be allowed: %t", r, test.user, err, test.allowed)
				}
				return nil
			})
		}
	}

	// The token of a deleted plugin pod is worth nothing.
	must.Do(t, lab.DeletePod(t.Context(), own.Namespace, own.Name))
	for _, user := range []string{n1, ""} {
		client := world.ClientOf(t, kubeconfig, user)
		for _, r := range []request{getPod(here), {"get", "secrets", ns, "here"}, all} {
			harness.Eventually(t, world.Soon, func() error { // the API server keeps an answer for seconds
				if err := r.send(t.Context(), client); !apierrors.IsUnauthorized(err) {
					return fmt.Errorf("%v as %q with the token of a deleted pod: %v, want 401", r, user, err)
				}
				return nil
			})
		}
	}
}

// TestAsNodeWithoutMirrorPod: the API server has no pod for a static pod until it accepts the mirror, which NodeRestriction refuses if it
// names Secrets. Until then its authorizer answers 403, as for a pod of another node, and no 404.
func TestAsNodeWithoutMirrorPod(t *testing.T) {
	t.Parallel()
	_, kubeconfig := pluginPod(t, harness.NodeName)
	n := lab.NewNodeAs(t, kubeconfig, "--identity=node", "--publish-wait=1s")
	n.Secret("db", map[string]string{"password": n.Canary()})
	static := n.Volume(map[string]string{"secret": "db"})
	static.Unknown = true
	for range 2 {
		world.WantStatus(t, n.FinalAnswer(static), codes.PermissionDenied, "read pod "+n.Namespace+"/"+static.Pod+": ", "no relationship found between node")
	}
	n.WantNothingLeft()
}
