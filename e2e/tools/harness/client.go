package harness

import (
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// ClientFor returns a client of config without a rate limit, whose connections end with the test.
func ClientFor(t interface {
	TB
	Cleanup(f func())
}, config *rest.Config,
) kubernetes.Interface {
	t.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatalf("make the connections to the API server: %v", err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(transport.Transport) })
	client, err := kubernetes.NewForConfigAndClient(config, transport)
	if err != nil {
		t.Fatalf("make a client of the API server: %v", err)
	}
	return client
}
