// Package kubelet serves what of a kubelet's API a port-forward takes, with Kubernetes' own streaming package, for
// any number of nodes at once.
//
// It owns the server and its certificate. It must not know what is reached through it.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// Server is one endpoint for the kubelets of many nodes. It is safe for concurrent use. Close ends it.
type Server struct {
	http *httptest.Server
	// targets are the addresses that stand for the pods, by namespace/name.
	targets sync.Map
}

// Start starts a server on a port of loopback.
func Start() *Server {
	s := &Server{}
	s.http = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	return s
}

// Close ends the server. The port-forwards end when their clients do.
func (s *Server) Close() { s.http.Close() }

// Node returns a ready node whose kubelet is this server.
func (s *Server) Node(name string) (*corev1.Node, error) {
	address, err := netip.ParseAddrPort(s.http.Listener.Addr().String())
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Conditions:      []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(address.Port())}},
		},
	}, err
}

// Forward has a pod's ports all lead to an address; "" for a pod on which nothing listens.
func (s *Server) Forward(namespace, pod, address string) { s.targets.Store(namespace+"/"+pod, address) }

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	pod, ok := strings.CutPrefix(r.URL.Path, "/portForward/")
	if !ok {
		http.NotFound(w, r)
		return
	}
	portforward.ServePortForward(w, r, forwarder{s}, pod, "", nil, time.Minute, 30*time.Second, portforward.SupportedProtocols)
}

// forwarder is what a container runtime does for a kubelet.
type forwarder struct{ *Server }

// PortForward is portforward.PortForwarder's.
func (f forwarder) PortForward(ctx context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	target, _ := f.targets.Load(pod)
	address, _ := target.(string)
	if address == "" {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace, IPv4: dial tcp4 127.0.0.1:%d: connect: connection refused", port, port)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace, IPv4: %w", port, err)
	}
	// The library never lets go of who writes to, or closes, a stream of a client that went away before the reply to it was sent. So
	// the end of the client's part ends the connection, whatever waits on the stream.
	closed := sync.OnceValue(conn.Close)
	go func() {
		_, _ = io.Copy(conn, stream)
		_ = closed()
	}()
	_, err = io.Copy(stream, conn)
	err = errors.Join(err, closed())
	_ = stream.Close() // the client may have ended it, as it does when it has waited long enough
	return err
}
