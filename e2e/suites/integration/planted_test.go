package integration

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

// planted is a plugin that is made to show what no other may: what it rightly shows of a
// pod or of the node is a value or a token here. It is no node, whose test would fail.
type planted struct {
	*harness.Plugin
	t         *testing.T
	namespace string
}

func newPlanted(t *testing.T, o harness.PluginOptions, args ...string) *planted {
	t.Helper()
	o.Binary, o.Kubeconfig, o.Dir, o.Args = shared.plugin, shared.kubeconfig, nodeDir(t), append([]string{"-v=10"}, args...)
	p, err := harness.StartPlugin(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return &planted{p, t, newNamespace(t)}
}

// find checks that a search finds just this.
func (p *planted) find(err error, where string) {
	p.t.Helper()
	if err == nil || !strings.Contains(err.Error(), where) {
		p.t.Errorf("got %v, want a leak in %s", err, where)
	}
}

// none checks that nothing is found where nothing is planted yet.
func (p *planted) none() {
	p.t.Helper()
	_, told := harness.EventLeaks(p.t.Context(), shared.Client(), p.namespace)
	if err := errors.Join(p.ShownLeaks(p.t.Context()), p.DiskLeaks(), told); err != nil {
		p.t.Fatal(err)
	}
}

// tell has the plugin log a text: the reason for which a kubelet refuses it.
func (p *planted) tell(text string) {
	p.t.Helper()
	sockets, err := filepath.Glob(filepath.Join(p.RegistrationDir(), "*.sock"))
	if err != nil || len(sockets) != 1 {
		p.t.Fatalf("registration sockets = %v, %v, want one", sockets, err)
	}
	conn, err := grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close()
	status := &registration.RegistrationStatus{Error: text}
	if _, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(p.t.Context(), status); err != nil {
		p.t.Fatal(err)
	}
}

// TestPlantedLeaks sees to it that each search finds what is there to be found, in what the
// plugin itself wrote.
func TestPlantedLeaks(t *testing.T) {
	t.Parallel()
	for what, value := range map[string]string{"value": leak.NewValue(), "token": leak.NewToken()} {
		t.Run("in the environment, "+what, func(t *testing.T) {
			p := newPlanted(t, harness.PluginOptions{Env: []string{"PASSWORD=" + value}})
			p.find(p.ShownLeaks(t.Context()), "/environ leaks a "+what)
		})
		t.Run("in the arguments, "+what, func(t *testing.T) {
			p := newPlanted(t, harness.PluginOptions{}, "--node-name="+value)
			p.find(p.ShownLeaks(t.Context()), "/cmdline leaks a "+what)
		})
		t.Run("in an answer, "+what, func(t *testing.T) {
			p := newPlanted(t, harness.PluginOptions{})
			p.none()
			err := p.Publish(t.Context(), harness.NewVolume(p.namespace, "pod", map[string]string{"defaultMode": value, "configMap": "app"}))
			wantStatus(t, err, codes.InvalidArgument)
			p.find(p.ShownLeaks(t.Context()), "the answer to NodePublishVolume leaks a "+what)
		})
	}
	t.Run("in an event", plantedEvent)
	t.Run("over HTTP", func(t *testing.T) {
		p := newPlanted(t, harness.PluginOptions{}, "--http-address=127.0.0.1:0")
		p.none()
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				fmt.Fprintf(w, "refvol_volumes{secret=%q} 1\n", leak.NewValue())
			}
		}))
		defer server.Close()
		p.find(harness.HTTPLeaks(t.Context(), server.Listener.Addr().String()), "/metrics leaks a value")
		server.Close()
		if err := harness.HTTPLeaks(t.Context(), server.Listener.Addr().String()); err == nil {
			t.Error("a server that is away has nothing to hide")
		}
	})
	t.Run("in the status", func(t *testing.T) {
		p := newPlanted(t, harness.PluginOptions{}, "--node-name="+leak.NewValue(), anyStatusPort)
		p.find(p.ShownLeaks(t.Context()), "/status leaks a value")
	})
	for _, format := range []string{"text", "json"} {
		t.Run("in a log, "+format, func(t *testing.T) { plantedInLog(t, format) })
	}
}

// plantedEvent has the plugin name a path in an event.
func plantedEvent(t *testing.T) {
	p := newPlanted(t, harness.PluginOptions{})
	// The whole run's events are searched at its end.
	defer func() {
		if err := shared.Client().CoreV1().Events(p.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}()
	v := harness.NewVolume(p.namespace, "pod", map[string]string{
		"sources": "- env: {path: " + leak.NewValue() + ", env: [{name: NOT.FOR.FILES, value: x}]}",
	})
	if err := p.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, soon, func() error {
		events, err := harness.EventLeaks(t.Context(), shared.Client(), p.namespace)
		if events == 0 {
			return errors.New("no event yet")
		}
		p.find(err, "leaks a value")
		return nil
	})
	if err := p.Unpublish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	// It must not come after the others have gone.
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
}

// plantedInLog has the plugin log a value and a token.
func plantedInLog(t *testing.T, format string) {
	p := newPlanted(t, harness.PluginOptions{}, "--logging-format="+format)
	p.none()
	for what, value := range map[string]string{"value": leak.NewValue(), "token": leak.NewToken()} {
		p.tell(value)
		p.find(p.DiskLeaks(), p.LogPath()+" leaks a "+what)
	}
}
