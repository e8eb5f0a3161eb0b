package portforward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
)

const (
	// maxHeader is how many bytes the headers of an answer may have, and maxFailure how many of a
	// failure's text are read.
	maxHeader  = 64 << 10
	maxFailure = 4 << 10
)

// Transport returns what sends each HTTP request to the pod, on the port of the request's URL, by a
// port-forward of its own. The error is an API error if the API server refuses the port-forward, and
// wraps ECONNREFUSED if nothing listens on the port. The transport is safe for concurrent use. It ends
// with the request's context, or when the answer's body is closed.
func (f *Forwarder) Transport(namespace, pod string) http.RoundTripper {
	return &transport{f, namespace, pod}
}

type transport struct {
	forwarder      *Forwarder
	namespace, pod string
}

// RoundTrip is http.RoundTripper's.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	session, err := t.forwarder.connect(ctx, t.namespace, t.pod)
	if err != nil {
		return nil, fmt.Errorf("port-forward to pod %s/%s: %w", t.namespace, t.pod, err)
	}
	// Reads and writes know no context: the end of the connection ends them.
	stop := context.AfterFunc(ctx, func() { _ = session.Close() })
	end := func() error {
		stop()
		return session.Close()
	}
	// A stream that the node does not acknowledge goes on for half a minute, whatever becomes of its
	// connection.
	response, err := within(ctx, func() (*http.Response, error) { return send(session, request) }, func(*http.Response) {})
	if err != nil {
		return nil, fmt.Errorf("port-forward to pod %s/%s: %w", t.namespace, t.pod, errors.Join(err, end()))
	}
	response.Body = &body{response.Body, end}
	return response, nil
}

// send sends a request over new streams of a connection.
func send(session httpstream.Connection, request *http.Request) (*http.Response, error) {
	header := http.Header{}
	header.Set(corev1.PortHeader, request.URL.Port())
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
	request = request.Clone(request.Context())
	request.Close = true // so that the end of the answer is that of the stream
	if err := request.Write(data); err != nil {
		return nil, failed(data, failure, fmt.Errorf("send the request: %w", err))
	}
	head := &io.LimitedReader{R: data, N: maxHeader}
	response, err := http.ReadResponse(bufio.NewReader(head), request)
	if err != nil {
		return nil, failed(data, failure, fmt.Errorf("read the answer: %w", err))
	}
	head.N = math.MaxInt64 // whoever reads the body bounds it
	return response, nil
}

// failed returns what the node says of a port-forward that has failed, or else err.
func failed(data, failure httpstream.Stream, err error) error {
	// What is not read of the data would keep the node from ending the failure's stream.
	_ = data.Reset()
	text, readErr := io.ReadAll(io.LimitReader(failure, maxFailure))
	switch {
	case strings.Contains(strings.ToLower(string(text)), syscall.ECONNREFUSED.Error()):
		return fmt.Errorf("%w: %s", syscall.ECONNREFUSED, text)
	case len(text) > 0:
		return errors.New(string(text))
	case readErr != nil:
		return fmt.Errorf("%w; %w", err, readErr)
	}
	return err
}

// body is an answer's, whose end is that of the connection.
type body struct {
	io.ReadCloser
	end func() error
}

// Close is io.Closer's.
func (b *body) Close() error { return errors.Join(b.ReadCloser.Close(), b.end()) }
