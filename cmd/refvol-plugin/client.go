package main

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/permissions"
	"github.com/refvol/refvol/pkg/requests"
)

const (
	// connectTimeout limits dialling and the TLS handshake, each.
	connectTimeout = 5 * time.Second
	// A connection without incoming data for pingAfter gets a ping, and is closed if there is no answer within pingTimeout. An API server
	// that stalls for a shorter time loses no watch. A host that is gone is noticed sooner: the kernel closes a connection with bytes that
	// were not acknowledged within unackedTimeout.
	pingAfter      = 5 * time.Second
	pingTimeout    = 45 * time.Second
	unackedTimeout = 10 * time.Second
	// keepAlive is the time between the kernel's own probes, as in client-go.
	keepAlive = 30 * time.Second
)

// loadConfig reads a kubeconfig or, if kubeconfig is "", uses the pod's service account.
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

// newClient returns a client of the API server. r limits and paces its requests. The client has no rate limit of its own.
func newClient(config *rest.Config, r *requests.Requests) (*apiclient.Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	rest.AddUserAgent(config, "refvol-plugin/"+version.Get().GitVersion)
	httpClient, err := newHTTPClient(config)
	if err != nil {
		return nil, fmt.Errorf("make the connections to the API server: %w", err)
	}
	httpClient.Transport = r.Wrap(httpClient.Transport, config.Impersonate.UserName == "")
	return apiclient.New(config, httpClient)
}

// newPodClient returns a client of the same API server. Its requests carry the tokens of pods and no credential of the plugin.
func newPodClient(config *rest.Config, tokens *authz.Tokens, r *requests.Requests) (*apiclient.Client, error) {
	config = rest.AnonymousClientConfig(config)
	config.Wrap(tokens.Wrap)
	return newClient(config, r)
}

// newNodeClient returns a client of the same API server. Its requests carry the plugin's own credential and have the rights of the node.
func newNodeClient(config *rest.Config, nodeName string, r *requests.Requests) (*apiclient.Client, error) {
	config = rest.CopyConfig(config)
	config.Impersonate = rest.ImpersonationConfig{UserName: permissions.NodeUser(nodeName)}
	return newClient(config, r)
}

// newHTTPClient returns client-go's HTTP client for config, with the time limits above. Tokens, certificates and the CA are read again when
// their files change: client-go's layers above the transport do that, or replace the transport by a clone.
func newHTTPClient(config *rest.Config) (*http.Client, error) {
	// Because of the dialer, client-go does not share the transport with other clients of this configuration, so it may be changed here.
	config.Dial = requests.OneAtATime((&net.Dialer{Timeout: connectTimeout, KeepAlive: keepAlive, Control: setDeadHostTimeout}).DialContext)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, err := transportOf(client.Transport)
	if err != nil {
		return nil, err
	}
	base.TLSHandshakeTimeout, base.ResponseHeaderTimeout = connectTimeout, requests.AnswerTimeout
	base.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, MaxReceiveBufferPerStream: manager.StreamBuffer}
	return client, nil
}

// setDeadHostTimeout sets how long the kernel waits for an acknowledgement.
func setDeadHostTimeout(_, _ string, conn syscall.RawConn) (err error) {
	failed := conn.Control(func(fd uintptr) {
		err = os.NewSyscallError("set TCP_USER_TIMEOUT", unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unackedTimeout.Milliseconds())))
	})
	return cmp.Or(failed, err)
}

// transportOf returns the transport below client-go's wrappers.
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
