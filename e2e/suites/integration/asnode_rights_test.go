package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// impersonating returns a client of a kubeconfig that impersonates a user, empty for nobody.
func impersonating(t *testing.T, kubeconfig, user string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Impersonate.UserName = user
	return harness.ClientFor(t, config)
}

// The requests of a plugin for one object.
func getSecret(ns, name string) request {
	return request{"get secret " + name, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{})
		return err
	}}
}

func named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

func listSecrets(ns string, opts metav1.ListOptions) request {
	return request{"list secrets " + opts.FieldSelector, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Secrets(ns).List(ctx, opts)
		return err
	}}
}

func watchSecret(ns, name string) request {
	return request{"watch secret " + name, func(ctx context.Context, c kubernetes.Interface) error {
		w, err := c.CoreV1().Secrets(ns).Watch(ctx, named(name))
		if err == nil {
			w.Stop()
		}
		return err
	}}
}

func listConfigMap(ns, name string) request {
	return request{"list configmap " + name, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps(ns).List(ctx, named(name))
		return err
	}}
}

func watchConfigMap(ns, name string) request {
	return request{"watch configmap " + name, func(ctx context.Context, c kubernetes.Interface) error {
		w, err := c.CoreV1().ConfigMaps(ns).Watch(ctx, named(name))
		if err == nil {
			w.Stop()
		}
		return err
	}}
}

func getPod(pod *corev1.Pod) request {
	return request{"get pod on " + pod.Spec.NodeName, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err
	}}
}

func getNode(name string) request {
	return request{"get node " + name, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		return err
	}}
}

// request is one of the plugin's, or one that it must not be able to make.
type request struct {
	name string
	send func(context.Context, kubernetes.Interface) error
}

// TestRightsAsNode sends, with the token of a plugin's pod, what the plugin sends and what it must
// not get, to a real API server.
func TestRightsAsNode(t *testing.T) {
	t.Parallel()
	own, kubeconfig := pluginPod(t, harness.NodeName, asNodeRules(t))
	_, elsewhere := pluginPod(t, otherNode, asNodeRules(t))
	ns := newNamespace(t)
	for _, name := range []string{"here", "there", "nowhere"} {
		meta := metav1.ObjectMeta{Name: name}
		_, err := shared.Client().CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		_, err2 := shared.Client().CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
	}
	here := schedule(t, shared.ControlPlane, ns, nativeBoth("here", "here"))
	spec := nativeBoth("there", "there")
	spec.NodeName = otherNode
	there := schedule(t, shared.ControlPlane, ns, spec)

	n1, n2 := nodeUser(harness.NodeName), nodeUser(otherNode)
	all := listSecrets(ns, metav1.ListOptions{})
	for _, test := range []struct {
		token, user string
		allowed     bool
		requests    []request
	}{
		{kubeconfig, n1, true, []request{
			getPod(own), getPod(here), getSecret(ns, "here"), listSecrets(ns, named("here")), watchSecret(ns, "here"),
			listConfigMap(ns, "here"), watchConfigMap(ns, "here"),
		}},
		{kubeconfig, "", false, []request{
			getPod(own), getPod(here), getSecret(ns, "here"), listSecrets(ns, named("here")), watchSecret(ns, "here"),
			listConfigMap(ns, "here"), watchConfigMap(ns, "here"), all, getNode(harness.NodeName),
		}},
		{kubeconfig, n1, false, []request{
			getPod(there), getSecret(ns, "there"), listSecrets(ns, named("there")), watchSecret(ns, "there"), listConfigMap(ns, "there"),
			watchConfigMap(ns, "there"), getSecret(ns, "nowhere"), getSecret(ns, "absent"), all, getNode(harness.NodeName),
		}},
		{kubeconfig, n2, false, []request{getPod(there), getSecret(ns, "there"), getSecret(ns, "here"), listConfigMap(ns, "there")}},
		// A token from another node is worth nothing for what only this node's pods name.
		{elsewhere, n1, false, []request{getPod(here), getSecret(ns, "here"), listConfigMap(ns, "here")}},
		{elsewhere, n2, false, []request{getPod(here), getSecret(ns, "here"), listConfigMap(ns, "here")}},
		{elsewhere, n2, true, []request{getPod(there), getSecret(ns, "there"), listConfigMap(ns, "there")}},
	} {
		client := impersonating(t, test.token, test.user)
		for _, r := range test.requests {
			// The authorizer hears of the pods by a watch.
			harness.Eventually(t, soon, func() error {
				if err := r.send(t.Context(), client); test.allowed != (err == nil) || !test.allowed && !apierrors.IsForbidden(err) {
					return fmt.Errorf("%s as %q: %v, want it to be allowed: %t", r.name, test.user, err, test.allowed)
				}
				return nil
			})
		}
	}

	// The token of a deleted plugin pod is worth nothing.
	if err := deletePod(t.Context(), shared.ControlPlane, own); err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{n1, ""} {
		client := impersonating(t, kubeconfig, user)
		for _, r := range []request{getPod(here), getSecret(ns, "here"), all} {
			harness.Eventually(t, soon, func() error { // the API server keeps an answer for seconds
				if err := r.send(t.Context(), client); !apierrors.IsUnauthorized(err) {
					return fmt.Errorf("%s as %q with the token of a deleted pod: %v, want 401", r.name, user, err)
				}
				return nil
			})
		}
	}
}
