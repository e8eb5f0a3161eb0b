package manifests

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// tokenLifetime is longer than a test takes.
const tokenLifetime = time.Hour

// TestPodIdentityExample asks for what the example's pod shows, with a token of its
// service account, in the ways in which the plugin asks; and for more.
func TestPodIdentityExample(t *testing.T) {
	const namespace, account = "refvol-example-identity", "app"
	mustKubectl(t, "apply", "--filename="+filepath.Join(shared.deploy, "examples", "pod-identity.yaml"))
	t.Cleanup(func() { removePods(t) })
	client := clientOf(t, namespace, account)
	for resource, name := range map[string]string{"configmaps": "settings", "secrets": "credentials"} {
		objects := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource}).Namespace(namespace)
		only := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
		harness.Eventually(t, soon, func() error { // the authorizer hears of the grant
			_, err := objects.Get(t.Context(), name, metav1.GetOptions{})
			return err
		})
		list, err := objects.List(t.Context(), only)
		if err != nil || len(list.Items) != 1 {
			t.Errorf("%s: list of one: %v", resource, err)
		}
		if err := watches(t.Context(), objects, only); err != nil {
			t.Errorf("%s: watch of one: %v", resource, err)
		}
		_, all := objects.List(t.Context(), metav1.ListOptions{})
		_, another := objects.Get(t.Context(), "another", metav1.GetOptions{})
		remove := objects.Delete(t.Context(), name, metav1.DeleteOptions{})
		for what, err := range map[string]error{
			"list all": all, "get another": another, "delete": remove,
			"watch all": watches(t.Context(), objects, metav1.ListOptions{}),
		} {
			if !apierrors.IsForbidden(err) {
				t.Errorf("%s: %s: got %v, want it forbidden", resource, what, err)
			}
		}
	}
}

// watches opens a watch and ends it once it tells of an object.
func watches(ctx context.Context, objects dynamic.ResourceInterface, o metav1.ListOptions) error {
	w, err := objects.Watch(ctx, o)
	if err != nil {
		return err
	}
	defer w.Stop()
	if event, ok := <-w.ResultChan(); !ok || event.Type != "ADDED" {
		return fmt.Errorf("watch began with %v", event)
	}
	return nil
}

// clientOf returns a client with a token of a service account. It is good until the test
// ends.
func clientOf(t *testing.T, namespace, account string) dynamic.Interface {
	t.Helper()
	token, err := shared.ServiceAccountToken(t.Context(), namespace, account, tokenLifetime)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(shared.Config())
	config.BearerToken, config.QPS = token, -1
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport.Transport) })
	client, err := dynamic.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
