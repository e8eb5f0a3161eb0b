package apiclient

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
)

// userTimeout bounds each request of a command that ends by itself.
const userTimeout = 30 * time.Second

// ForUser returns a Client for a command that ends by itself, which calls itself agent, and the namespace that the kubeconfig
// names. An empty kubeconfig is the usual one of a user, or of a pod.
func ForUser(kubeconfig, agent string) (client *Client, namespace string, err error) {
	config, namespace, err := UserConfig(kubeconfig, agent)
	if err != nil {
		return nil, "", err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, "", fmt.Errorf("make the connections to the API server: %w", err)
	}
	client, err = New(config, httpClient)
	return client, namespace, err
}

// UserConfig returns how a user's kubeconfig reaches the API server, and the namespace that it names. A pod that has no
// kubeconfig uses its service account.
func UserConfig(kubeconfig, agent string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("configure the client of the API server: %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("find the kubeconfig's namespace: %w", err)
	}
	// Requests go out one after the other, which is limit enough.
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Timeout = userTimeout
	rest.AddUserAgent(config, agent+"/"+version.Get().GitVersion)
	return config, namespace, nil
}
