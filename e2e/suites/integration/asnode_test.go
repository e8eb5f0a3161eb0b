package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

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
	return schedule(t, namespace, corev1.PodSpec{NodeName: nodeName, Volumes: []corev1.Volume{{Name: "native", VolumeSource: both}}})
}

// TestRightsAsNode sends, with the token of a plugin's pod, what the plugin sends and what it must
// not get, to a real API server.
func TestRightsAsNode(t *testing.T) {
	t.Parallel()
	own, kubeconfig := pluginPod(t, harness.NodeName)
	_, elsewhere := pluginPod(t, otherNode)
	ns := newNamespace(t)
	for _, name := range []string{"here", "there", "nowhere"} {
		meta := metav1.ObjectMeta{Name: name}
		_, err := shared.Client().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		_, err2 := shared.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
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
		client := clientOf(t, test.token, test.user)
		for _, r := range test.requests {
			// The authorizer hears of the pods by a watch.
			harness.Eventually(t, soon, func() error {
				if err := r.send(t.Context(), client); test.allowed != (err == nil) || !test.allowed && !apierrors.IsForbidden(err) {
					return fmt.Errorf("%v as %q: %v, want it to be allowed: %t", r, test.user, err, test.allowed)
				}
				return nil
			})
		}
	}

	// The token of a deleted plugin pod is worth nothing.
	must.Do(t, shared.DeletePod(t.Context(), own.Namespace, own.Name))
	for _, user := range []string{n1, ""} {
		client := clientOf(t, kubeconfig, user)
		for _, r := range []request{getPod(here), {"get", "secrets", ns, "here"}, all} {
			harness.Eventually(t, soon, func() error { // the API server keeps an answer for seconds
				if err := r.send(t.Context(), client); !apierrors.IsUnauthorized(err) {
					return fmt.Errorf("%v as %q with the token of a deleted pod: %v, want 401", r, user, err)
				}
				return nil
			})
		}
	}
}

// TestAsNodeWithoutMirrorPod: the API server has no pod for a static pod until it accepts the mirror, which NodeRestriction
// refuses if it names Secrets. Until then its authorizer answers 403, as for a pod of another node, and no 404.
func TestAsNodeWithoutMirrorPod(t *testing.T) {
	t.Parallel()
	_, kubeconfig := pluginPod(t, harness.NodeName)
	n := newNodeAs(t, kubeconfig, "--identity=node", "--publish-wait=1s")
	n.secret("db", map[string]string{"password": n.canary()})
	static := n.volume(map[string]string{"secret": "db"})
	static.Unknown = true
	for range 2 {
		wantStatus(t, n.finalAnswer(static), codes.PermissionDenied, "read pod "+n.namespace+"/"+static.Pod+": ", "no relationship found between node")
	}
	n.wantNothingLeft()
}
