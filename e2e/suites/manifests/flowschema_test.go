package manifests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestFlowSchema sends what the plugin sends, and other requests, and wants the API server to
// put the former on the plugin's priority level and no other.
func TestFlowSchema(t *testing.T) {
	const object = "refvol-plugin"
	plugin, pod := httpOf(t, pluginNamespace, pluginAccount), httpOf(t, consumer, "default")
	api := shared.Client().FlowcontrolV1()
	list := asked{method: http.MethodGet, path: "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name%3Dapp"}
	var own class
	await := func(ctx context.Context, sorted bool) error {
		return harness.Poll(ctx, soon, pace, func() error {
			got, err := plugin.class(ctx, list)
			if err == nil && (got == own) != sorted {
				err = fmt.Errorf("the request is of %+v, and the plugin's are of %+v", got, own)
			}
			return err
		})
	}
	t.Cleanup(func() { // after the component is gone
		if err := await(context.WithoutCancel(t.Context()), false); err != nil {
			t.Error(err)
		}
	})
	install(t, "flow-schema")
	schema, err := api.FlowSchemas().Get(t.Context(), object, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	level, err := api.PriorityLevelConfigurations().Get(t.Context(), object, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own = class{schema: string(schema.UID), level: string(level.UID)}
	if err := await(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	wantNotDangling(t, object)
	for _, request := range pluginsRequests() {
		if got, err := plugin.class(t.Context(), request); err != nil || got != own {
			t.Errorf("%+v is of %+v, want %+v (%v)", request, got, own, err)
		}
		if got, err := pod.class(t.Context(), request); err != nil || got.schema == own.schema || got.level == own.level {
			t.Errorf("%+v of a pod's account is of the plugin's level (%v)", request, err)
		}
	}
	for _, request := range []asked{
		{method: http.MethodDelete, path: "/api/v1/namespaces/default/secrets/app"},
		{method: http.MethodGet, path: "/api/v1/secrets"},
		{method: http.MethodGet, path: "/api/v1/namespaces/default/pods"},
		{method: http.MethodGet, path: "/api/v1/nodes"},
		{method: http.MethodPost, path: "/api/v1/namespaces/default/serviceaccounts/default/token", body: "{}"},
		{method: http.MethodGet, path: "/version"},
	} {
		if got, err := plugin.class(t.Context(), request); err != nil || got.level == own.level {
			t.Errorf("%+v, which the plugin never sends, is of its level (%v)", request, err)
		}
	}
}

// pluginsRequests are one of each kind. That most are refused is no matter: the API server sorts
// them before.
func pluginsRequests() []asked {
	requests := []asked{
		{method: http.MethodGet, path: "/api/v1/namespaces/default/pods/app"},
		{method: http.MethodPost, path: "/api/v1/namespaces/default/events", body: "{}"},
		{method: http.MethodPatch, path: "/api/v1/namespaces/default/events/app", body: "{}"},
		{method: http.MethodGet, path: "/api/v1/nodes/node-1"},
		{method: http.MethodPatch, path: "/api/v1/nodes/node-1", body: "[]"},
		{method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/subjectaccessreviews", body: "{}"},
	}
	for _, resource := range []string{"configmaps", "secrets"} {
		objects := "/api/v1/namespaces/default/" + resource
		for _, path := range []string{"/app", "?fieldSelector=metadata.name%3Dapp", "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dapp"} {
			requests = append(requests, asked{method: http.MethodGet, path: objects + path})
		}
	}
	return requests
}

// wantNotDangling waits until the API server has found the schema's priority level.
func wantNotDangling(t *testing.T, name string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		schema, err := shared.Client().FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range schema.Status.Conditions {
			if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionFalse {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", schema.Status.Conditions)
	})
}

// asked is a request to the API server.
type asked struct{ method, path, body string }

// class is how the API server has sorted a request: the UIDs of schema and priority level.
type class struct{ schema, level string }

// account sends requests as a service account.
type account struct {
	*http.Client
	host string
}

// httpOf returns an account whose token is good until the test ends.
func httpOf(t *testing.T, namespace, name string) account {
	t.Helper()
	token, err := shared.ServiceAccountToken(t.Context(), namespace, name, tokenLifetime)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(shared.Config())
	config.BearerToken = token
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) })
	return account{client, config.Host}
}

// class sends a request and returns how it was sorted.
func (a account) class(ctx context.Context, r asked) (class, error) {
	request, err := http.NewRequestWithContext(ctx, r.method, a.host+r.path, strings.NewReader(r.body))
	if err != nil {
		return class{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	if r.method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/json-patch+json")
	}
	response, err := a.Do(request)
	if err != nil {
		return class{}, err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return class{}, err
	}
	sorted := class{response.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID), response.Header.Get(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)}
	if sorted.schema == "" || sorted.level == "" {
		return sorted, fmt.Errorf("%s %s was not sorted: %s", r.method, r.path, response.Status)
	}
	return sorted, nil
}
