// Package portforward reaches ports of pods through the API server, with the rights of a kubeconfig.
//
// It owns the two protocols of a port-forward, and how they end. It opens no port on this machine. It
// must not know what is asked of a pod.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// protocol is that of the streams of a port-forward.
const protocol = portforward.PortForwardProtocolV1Name

// Forwarder makes port-forwards. It is safe for concurrent use.
type Forwarder struct {
	config *rest.Config
	core   rest.Interface
}

// New returns a Forwarder that reaches the API server as config says. core makes the addresses of pods.
func New(config *rest.Config, core rest.Interface) *Forwarder {
	// The timeout of a request would also end what is forwarded.
	config = rest.CopyConfig(config)
	config.Timeout = 0
	return &Forwarder{config: config, core: core}
}

// connect makes a connection to a pod that carries streams. Like kubectl it tries a WebSocket first, and
// then SPDY, which an API server before 1.30 or a proxy may need. What the API server itself refuses by
// WebSocket it would refuse by SPDY too. The error is then the API error.
func (f *Forwarder) connect(ctx context.Context, namespace, pod string) (httpstream.Connection, error) {
	address := f.core.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(address, f.config)
	if err != nil {
		return nil, fmt.Errorf("make a WebSocket's transport: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(f.config)
	if err != nil {
		return nil, fmt.Errorf("make SPDY's transport: %w", err)
	}
	bySPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	dialer := portforward.NewFallbackDialerForStreaming(webSocket, bySPDY, useSPDY)
	return within(ctx, func() (httpstream.Connection, error) {
		connection, agreed, err := dialer.Dial(protocol)
		if err == nil && agreed != protocol {
			err = errors.Join(fmt.Errorf("the API server speaks %q, not %s", agreed, protocol), connection.Close())
		}
		return connection, cause(err)
	}, func(connection httpstream.Connection) { _ = connection.Close() })
}

// within returns what do returns, or the cause of ctx's end if that comes first. Then do goes on, and late
// gets what it returns without an error.
func within[T any](ctx context.Context, do func() (T, error), late func(T)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				late(r.value)
			}
		}()
		var none T
		return none, context.Cause(ctx)
	}
}

// cause returns the API error of a failed upgrade, if the API server gave one, else the failure.
func cause(err error) error {
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		var refusal *apierrors.StatusError
		if errors.As(upgrade.Cause, &refusal) {
			return refusal
		}
	}
	return err
}

// useSPDY tells whether SPDY may do where a WebSocket failed: something on the way doesn't know it.
func useSPDY(err error) bool {
	err = cause(err)
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}
