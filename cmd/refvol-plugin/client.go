package main

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/dialer"
)

const (
	// connectTimeout bounds dialling, and the TLS handshake after it, each.
	connectTimeout = 5 * time.Second
	// A connection on which nothing has arrived for pingAfter is asked for a sign of
	// life, and given up without one after pingTimeout more: every watch shares a few
	// connections, and a peer that has gone without a word would leave all of them deaf.
	// An API server that stalls for less than pingTimeout loses no watch of any node.
	// docs/reliability.md has the measurements by which both were chosen.
	pingAfter   = 5 * time.Second
	pingTimeout = 10 * time.Second
	// keepAlive is the time between the kernel's own probes, as in client-go.
	keepAlive = 30 * time.Second
)

// loadConfig reads a kubeconfig, or where none is named, the pod's service account.
func loadConfig(kubeconfig string) (config *rest.Config, err error) {
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("configure the client of the API server: %w", err)
	}
	return config, nil
}

// newClient returns a client of the API server. It has no rate limit of its own:
// the manager bounds and paces its requests itself, and a shared limit would let one
// pod's many objects hold up the other pods' first publish.
func newClient(config *rest.Config) (*apiclient.Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	rest.AddUserAgent(config, "refvol-plugin/"+version.Get().GitVersion)
	httpClient, err := newHTTPClient(config)
	if err != nil {
		return nil, fmt.Errorf("make the connections to the API server: %w", err)
	}
	return apiclient.New(config, httpClient)
}

// newPodClient returns a client of the same API server whose requests carry the tokens of
// pods and nothing of the plugin's own.
func newPodClient(config *rest.Config, tokens *authz.Tokens) (*apiclient.Client, error) {
	config = rest.AnonymousClientConfig(config)
	config.Wrap(tokens.Wrap)
	return newClient(config)
}

// newHTTPClient returns what client-go makes of config, with the time limits above.
// Tokens, certificates and the CA are read again when their files change, as ever:
// that is the work of what wraps the transport, or replaces it by a clone.
func newHTTPClient(config *rest.Config) (*http.Client, error) {
	// A dialer of its own keeps the transport from being shared with whoever else
	// makes a client of the same configuration, so that it may be changed here.
	connections := dialer.New((&net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive}).DialContext)
	config.Dial = connections.DialContext
	config.WrapTransport = transport.Wrappers(connections.Wrap, config.WrapTransport)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, err := transportOf(client.Transport)
	if err != nil {
		return nil, err
	}
	base.TLSHandshakeTimeout = connectTimeout
	base.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return client, nil
}

// transportOf returns the transport below all that client-go wraps around it.
func transportOf(outer http.RoundTripper) (*http.Transport, error) {
	for rt := outer; ; {
		switch layer := rt.(type) {
		case *http.Transport:
			return layer, nil
		case utilnet.RoundTripperWrapper:
			rt = layer.WrappedRoundTripper()
		default:
			return nil, fmt.Errorf("the transport is a %T, and no *http.Transport", rt)
		}
	}
}
