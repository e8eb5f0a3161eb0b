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
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
)

// TestPlantedLeaks sees to it that each search finds what is there to be found: what a plugin rightly shows of a pod or of
// the node is a value or a token here. The plugins are no nodes, whose tests would fail.
func TestPlantedLeaks(t *testing.T) {
	t.Parallel()
	plant := func(o harness.PluginOptions) *harness.Plugin {
		o.Binary, o.Kubeconfig, o.Dir, o.Args = shared.plugin, shared.kubeconfig, nodeDir(t), append(o.Args, "-v=10", anyStatusPort)
		p, err := harness.StartPlugin(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	find := func(err error, where string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), where) {
			t.Errorf("got %v, want a leak in %s", err, where)
		}
	}
	namespace := newNamespace(t)
	for what, value := range map[string]string{"value": leak.NewValue(), "token": leak.NewToken()} {
		p := plant(harness.PluginOptions{Env: []string{"PASSWORD=" + value}})
		find(p.ShownLeaks(t.Context()), "/environ leaks a "+what)
		p = plant(harness.PluginOptions{Args: []string{"--node-name=" + value}})
		find(p.ShownLeaks(t.Context()), "/cmdline leaks a "+what)
		find(p.ShownLeaks(t.Context()), "/status leaks a "+what)

		for _, format := range []string{"text", "json"} {
			p = plant(harness.PluginOptions{Args: []string{"--logging-format=" + format}})
			_, told := harness.EventLeaks(t.Context(), shared.Client(), namespace)
			if err := errors.Join(p.ShownLeaks(t.Context()), p.DiskLeaks(), told); err != nil {
				t.Errorf("nothing is planted yet: %v", err)
			}
			notify(t, p, &registration.RegistrationStatus{Error: value}) // the plugin logs the reason
			find(p.DiskLeaks(), p.LogPath()+" leaks a "+what)
		}
		err := p.Publish(t.Context(), harness.NewVolume(namespace, "pod", map[string]string{"defaultMode": value, "configMap": "app"}))
		find(errors.Join(err, p.ShownLeaks(t.Context())), "the answer to NodePublishVolume leaks a "+what)
	}

	// An event names a path.
	p := plant(harness.PluginOptions{})
	v := harness.NewVolume(namespace, "pod", map[string]string{
		"sources": "- env: {path: " + leak.NewValue() + ", env: [{name: NOT.FOR.FILES, value: x}]}",
	})
	if err := p.Publish(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, soon, func() error {
		events, err := harness.EventLeaks(t.Context(), shared.Client(), namespace)
		if events == 0 {
			return errors.New("no event yet")
		}
		find(err, "leaks a value")
		return nil
	})
	// The whole run's events are searched at its end, and none must come after these have gone.
	if err := errors.Join(p.Unpublish(t.Context(), v), p.Kill(),
		shared.Client().CoreV1().Events(namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})); err != nil {
		t.Error(err)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprintf(w, "refvol_volumes{secret=%q} 1\n", leak.NewValue())
		}
	}))
	defer server.Close()
	find(harness.HTTPLeaks(t.Context(), server.Listener.Addr().String()), "/metrics leaks a value")
	server.Close()
	if err := harness.HTTPLeaks(t.Context(), server.Listener.Addr().String()); err == nil {
		t.Error("a server that is away has nothing to hide")
	}
}

// notify tells the plugin what became of its registration, as a kubelet does.
func notify(t *testing.T, p *harness.Plugin, status *registration.RegistrationStatus) {
	t.Helper()
	var sockets []string
	harness.Eventually(t, soon, func() (err error) {
		if sockets, err = filepath.Glob(filepath.Join(p.RegistrationDir(), "*.sock")); err == nil && len(sockets) != 1 {
			err = fmt.Errorf("registration sockets are %q", sockets)
		}
		return err
	})
	conn, err := grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := registration.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
}
