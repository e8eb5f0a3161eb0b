package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// maxHeader is how many bytes the headers of an answer may have, and maxFailure how many of a
	// failure's text are read.
	maxHeader  = 64 << 10
	maxFailure = 4 << 10
)

// podTransport returns what sends each HTTP request to a pod, on the port of the request's URL, by a port-forward of its
// own. It opens no port on this machine. core makes the pods' addresses. The error is an API error if the API server refuses
// the port-forward, and wraps ECONNREFUSED if nothing listens on the port. It is safe for concurrent use.
func podTransport(config *rest.Config, core rest.Interface, namespace, pod string) http.RoundTripper {
	return &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		// It returns late, or never, if the node does not answer. The transport waits no longer than the request's context,
		// and closes what comes later.
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			conn, err := dialPod(config, core.Get().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward"), address)
			if err != nil {
				return nil, fmt.Errorf("port-forward to pod %s/%s: %w", namespace, pod, err)
			}
			return conn, nil
		},
	}
}

// dialPod connects to the port of an address within a pod. Like kubectl it tries a WebSocket first, and then SPDY, which an
// API server before 1.30 or a proxy may need. What the API server itself refuses by WebSocket it would refuse by SPDY too.
func dialPod(config *rest.Config, request *rest.Request, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// The timeout of a request would also end what is forwarded.
	config = rest.CopyConfig(config)
	config.Timeout = 0
	webSocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(request.URL(), config)
	if err != nil {
		return nil, fmt.Errorf("make a WebSocket's transport: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("make SPDY's transport: %w", err)
	}
	bySPDY := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, request.URL())
	session, agreed, err := portforward.NewFallbackDialerForStreaming(webSocket, bySPDY, useSPDY).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, cause(err)
	}
	conn, err := openStreams(session, port)
	if agreed != portforward.PortForwardProtocolV1Name {
		err = fmt.Errorf("the API server speaks %q, not %s", agreed, portforward.PortForwardProtocolV1Name)
	}
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return conn, nil
}

// openStreams opens the two streams that a port takes.
func openStreams(session httpstream.Connection, port string) (*podConn, error) {
	header := http.Header{}
	header.Set(corev1.PortHeader, port)
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	failure, err := session.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("create a stream: %w", err)
	}
	if err := failure.Close(); err != nil { // nothing is written to it
		return nil, fmt.Errorf("close a stream: %w", err)
	}
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := session.CreateStream(header)
	if err != nil {
		return nil, fmt.Errorf("create a stream: %w", err)
	}
	conn := &podConn{data: data, session: session}
	conn.failure = sync.OnceValue(func() error {
		// What is not read of the data would keep the node from ending the failure's stream.
		_ = data.Reset()
		text, _ := io.ReadAll(io.LimitReader(failure, maxFailure)) // a part of it is better than nothing
		switch {
		case strings.Contains(strings.ToLower(string(text)), syscall.ECONNREFUSED.Error()):
			return fmt.Errorf("%w: %s", syscall.ECONNREFUSED, text)
		case len(text) > 0:
			return errors.New(string(text))
		}
		return nil
	})
	return conn, nil
}

// podConn is a connection to a port of a pod. It knows no deadlines, as no client of it sets one.
type podConn struct {
	data    httpstream.Stream
	session httpstream.Connection
	// failure returns what the node says of a port-forward that has failed, or nil.
	failure func() error
	// answered says that something was read. It belongs to the only reader.
	answered bool
}

// Read returns the node's own words for a port-forward of which nothing has come.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.data.Read(p)
	c.answered = c.answered || n > 0
	if err != nil && !c.answered {
		if failure := c.failure(); failure != nil {
			err = failure
		}
	}
	return n, err
}

// Write returns the node's own words if it fails.
func (c *podConn) Write(p []byte) (int, error) {
	n, err := c.data.Write(p)
	if err != nil {
		if failure := c.failure(); failure != nil {
			err = failure
		}
	}
	return n, err
}

// Close ends the reads and writes too.
func (c *podConn) Close() error { return c.session.Close() }

// LocalAddr is net.Conn's.
func (*podConn) LocalAddr() net.Addr { return &net.UnixAddr{} }

// RemoteAddr is net.Conn's.
func (*podConn) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// SetDeadline is net.Conn's.
func (*podConn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline is net.Conn's.
func (*podConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline is net.Conn's.
func (*podConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

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
