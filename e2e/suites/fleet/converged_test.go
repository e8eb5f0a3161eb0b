package fleet

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/kubelet"
)

// TestNoNodeIsLeftOut: a node is named of which it isn't known what it shows: it has no kubelet, nothing on the plugin's port, an answer
// without an end, or no plugin.
func TestNoNodeIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	cutOff := kubelet.NodeAt("cut-off", closedPort(t))
	cutOff.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.register(cutOff)
	w.pluginPod("cut-off", "")
	w.registerHere("refused")
	w.pluginPod("refused", "")
	w.registerHere("endless")
	w.pluginPod("endless", serve(t, func(rw http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := rw.Write([]byte(strings.Repeat(" ", 1<<20))); err != nil {
				return
			}
		}
	}))
	w.registerHere("registered")
	for _, args := range [][]string{{"converged", "secret/db", "-n", w.namespace, fmt.Sprint("--timeout=", bound)}, {"status"}} {
		r := w.run(append(args, "--plugin-timeout=2s")...)
		for _, name := range []string{"cut-off", "endless", "refused", "registered"} {
			if r.status != 1 || !strings.Contains(r.stdout, name) {
				t.Errorf("%q: status %d, want 1, and node %s in\n%s%s", args, r.status, name, r.stdout, r.stderr)
			}
		}
	}
}

// serve serves HTTP until the end of the test, and returns where.
func serve(t *testing.T, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().String()
}

// closedPort returns a port on which nothing listens.
func closedPort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}
