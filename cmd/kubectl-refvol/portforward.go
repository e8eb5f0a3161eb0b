package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/websocket"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

const (
	// maxHeader limits the headers of an answer, and maxFailure the text of a failure, in bytes.
	maxHeader  = 64 << 10
	maxFailure = 4 << 10
)

// podTransport sends each HTTP request to a pod through a new port-forward, to the port of the request's URL. It opens no port on this
// machine. Everything is closed at the end of the request's context, which must end. If the API server refuses the port-forward, the error
// is an API error. If nothing listens on the port, it wraps ECONNREFUSED. It is safe for concurrent use.
type podTransport struct {
	config *rest.Config
	// core builds the URLs of pods.
	core           rest.Interface
	namespace, pod string
}

// RoundTrip implements http.RoundTripper. It dials before it uses an http.Transport, because the context of a Transport's dialer has no
// deadline. If the request's context ends, the dial continues in the background for at most half a minute.
func (t *podTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	type dialled struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialled, 1)
	go func() {
		conn, err := t.dial(ctx, request.URL.Port())
		done <- dialled{conn, err}
	}()
	var d dialled
	select {
	case d = <-done:
	case <-ctx.Done():
		d.err = context.Cause(ctx)
	}
	if d.err != nil {
		return nil, fmt.Errorf("port-forward to pod %s/%s: %w", t.namespace, t.pod, orCause(ctx, d.err))
	}
	over := &http.Transport{
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return d.conn, nil },
	}
	return over.RoundTrip(request)
}

// orCause adds the cause to an error that the end of ctx has caused. A connection may notice a deadline before the context does.
func orCause(ctx context.Context, err error) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// dial connects to a port of the pod. Like kubectl, it tries a WebSocket first, and then SPDY, which an API server before 1.30 or a proxy
// may need. If the API server itself refuses the WebSocket, it would refuse SPDY too, so SPDY is not tried.
func (t *podTransport) dial(ctx context.Context, port string) (net.Conn, error) {
	// The timeout of a request would also end the forwarded connection.
	config := rest.CopyConfig(t.config)
	config.Timeout = 0
	url := t.core.Get().Namespace(t.namespace).Resource("pods").Name(t.pod).SubResource("portforward").URL()
	under, err := dialWebSocket(ctx, config, url)
	if err != nil && mayUseSPDY(err) {
		under, err = dialSPDY(ctx, config, url)
	}
	if err != nil {
		return nil, cause(err)
	}
	session, err := spdy.NewClientConnectionWithPings(under, portforward.PingPeriod)
	if err != nil {
		return nil, errors.Join(err, under.Close())
	}
	conn, err := openStreams(session, port)
	if err != nil {
		return nil, errors.Join(err, session.Close())
	}
	return conn, nil
}

// dialWebSocket returns a WebSocket that carries SPDY. Its handshake only obeys the deadline of ctx, so it gets one here.
func dialWebSocket(ctx context.Context, config *rest.Config, url *url.URL) (net.Conn, error) {
	transport, holder, err := websocket.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a WebSocket's transport: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(bounded, http.MethodGet, url.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	conn, err := websocket.Negotiate(transport, holder, request, webSocketProtocol)
	if err != nil {
		return nil, err
	}
	tunnel := portforward.NewTunnelingConnectionWithLogger(klog.FromContext(ctx), conn)
	context.AfterFunc(ctx, func() { _ = tunnel.Close() })
	return tunnel, nil
}

// webSocketProtocol is the protocol of port-forwards inside a WebSocket.
const webSocketProtocol = "SPDY/3.1+" + portforward.PortForwardProtocolV1Name

// dialSPDY returns a connection that was upgraded to SPDY.
func dialSPDY(ctx context.Context, config *rest.Config, url *url.URL) (net.Conn, error) {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("make SPDY's transport: %w", err)
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	dialer, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{TLS: tlsConfig, Proxier: proxy})
	if err != nil {
		return nil, fmt.Errorf("make SPDY's transport: %w", err)
	}
	upgrade := &upgrader{dialer: dialer}
	transport, err := rest.HTTPWrappersForConfig(config, upgrade)
	if err != nil {
		return nil, fmt.Errorf("make SPDY's transport: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderProtocolVersion, portforward.PortForwardProtocolV1Name)
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusSwitchingProtocols && response.Header.Get(httpstream.HeaderProtocolVersion) == portforward.PortForwardProtocolV1Name {
		return upgrade.conn, nil
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxFailure)) // a part of the text is better than nothing
	_ = upgrade.conn.Close()
	refusal := &apierrors.StatusError{}
	if json.Unmarshal(text, &refusal.ErrStatus) == nil && refusal.ErrStatus.Kind == "Status" {
		return nil, refusal
	}
	return nil, fmt.Errorf("the API server does not upgrade to SPDY: %s: %s", response.Status, text)
}

// upgrader sends one request and keeps its connection. Unlike client-go's upgrader, it stops waiting for an answer when the request's
// context ends.
type upgrader struct {
	dialer *spdy.SpdyRoundTripper
	conn   net.Conn
}

// RoundTrip implements http.RoundTripper.
func (u *upgrader) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	conn, err := u.dialer.Dial(request)
	if err != nil {
		return nil, err
	}
	u.conn = conn
	context.AfterFunc(request.Context(), func() { _ = conn.Close() }) // this also ends a wait for the acknowledgement of a stream
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return response, nil
}

// openStreams opens the two streams that a port needs.
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
		// Unread data would keep the node from ending the stream of failures.
		_ = data.Reset()
		text, _ := io.ReadAll(io.LimitReader(failure, maxFailure)) // a part of the text is better than nothing
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

// podConn is a connection to a port of a pod. It supports no deadlines, because its client sets none.
type podConn struct {
	data    httpstream.Stream
	session httpstream.Connection
	// failure returns the node's text about a failed port-forward, or nil.
	failure func() error
	// answered means that something was read. Only the reader uses it.
	answered bool
}

// Read reads data. If the port-forward fails before any data has come, it returns the node's own error.
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

// Write writes data. If it fails, it returns the node's own error if there is one.
func (c *podConn) Write(p []byte) (int, error) {
	n, err := c.data.Write(p)
	if err != nil {
		if failure := c.failure(); failure != nil {
			err = failure
		}
	}
	return n, err
}

// Close closes the connection, and ends pending reads and writes.
func (c *podConn) Close() error { return c.session.Close() }

// LocalAddr implements net.Conn.
func (*podConn) LocalAddr() net.Addr { return &net.UnixAddr{} }

// RemoteAddr implements net.Conn.
func (*podConn) RemoteAddr() net.Addr { return &net.UnixAddr{} }

// SetDeadline implements net.Conn. It is not supported.
func (*podConn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn. It is not supported.
func (*podConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn. It is not supported.
func (*podConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// cause returns the API error of a failed upgrade if there is one, or else the failure itself.
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

// mayUseSPDY reports whether SPDY may work after a WebSocket failed, because something on the way doesn't support WebSockets.
func mayUseSPDY(err error) bool {
	err = cause(err)
	return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}
