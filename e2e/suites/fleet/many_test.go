package fleet

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
)

// bound is three times what the answer of 200 plugins is to take, for a machine that does other things too.
const bound = 30 * time.Second

// TestManyPlugins prints how long 200 plugins take to answer; the short form has few.
func TestManyPlugins(t *testing.T) {
	plugins := harness.Scaled(6, 200)
	w := newWorld(t)
	began := time.Now()
	for i := range plugins {
		name := fmt.Sprintf("node-%03d", i)
		w.node(name).publish("app-on-" + name)
	}
	t.Logf("%d plugins started in %s", plugins, time.Since(began).Round(time.Second))
	changed := must.Get(shared.Client().CoreV1().Secrets(w.namespace).Patch(t.Context(), "db", types.MergePatchType,
		[]byte(`{"stringData":{"password":"`+leak.Value+` again"}}`), metav1.PatchOptions{}))(t)
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Nodes != plugins || v.Volumes != plugins || v.Showing != plugins || v.Current.ResourceVersion != changed.ResourceVersion {
		t.Errorf("got %+v, want %d of each, at version %s", v, plugins, changed.ResourceVersion)
	}
	t.Logf("converged over %d plugins: %s", plugins, r.took.Round(time.Millisecond))
	if r.took > bound {
		t.Errorf("converged took %s, want at most %s", r.took, bound)
	}
	status := w.run("status")
	t.Logf("status of %d plugins: %s", plugins, status.took.Round(time.Millisecond))
	// No kubelet has registered the plugins.
	notReady := fmt.Sprintf("Error: status: plugins that are not ready: %d\n", plugins)
	last := fmt.Sprintf("\n%d volumes on %d nodes, 0 abnormal\n", plugins, plugins)
	if status.status != 1 || status.stderr != notReady || !strings.HasSuffix(status.stdout, last) {
		t.Errorf("status %d: %s\n%s", status.status, status.stderr, status.stdout)
	}
}

// TestNoNodeIsLeftOut: a node is named of which it isn't known what it shows: nothing on the plugin's port, or no plugin.
func TestNoNodeIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	w.register("refused")
	w.pluginPod("refused", "")
	w.register("registered")
	for _, args := range [][]string{{"converged", "secret/db", "-n", w.namespace, fmt.Sprint("--timeout=", bound)}, {"status"}} {
		r := w.run(append(args, "--plugin-timeout=2s")...)
		for _, name := range []string{"refused", "registered"} {
			if r.status != 1 || !strings.Contains(r.stdout, name) {
				t.Errorf("%q: status %d, want 1, and node %s in\n%s%s", args, r.status, name, r.stdout, r.stderr)
			}
		}
	}
}

// TestThroughProxy stands a proxy that knows no WebSocket before the API server. It sees no value.
func TestThroughProxy(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live")
	target := must.Get(url.Parse(shared.Config().Host))(t)
	config := rest.AnonymousClientConfig(shared.Config())
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	transport := must.Get(rest.TransportFor(config))(t)
	var read, refused atomic.Int32
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = target.Host
	}}
	proxy.ModifyResponse = func(answer *http.Response) error {
		if !strings.Contains(answer.Request.URL.Path, "/secrets/") {
			return nil
		}
		read.Add(1)
		body, err := io.ReadAll(answer.Body)
		answer.Body = io.NopCloser(bytes.NewReader(body))
		if err := leak.Check("the answer to "+answer.Request.URL.Path, body); err != nil || !bytes.Contains(body, []byte("PartialObjectMetadata")) {
			t.Errorf("%v\n%s", err, body)
		}
		return err
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			refused.Add(1)
			http.Error(rw, "no WebSocket here", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(rw, r)
	}))
	defer server.Close()

	kubeconfig := must.Get(clientcmd.LoadFromFile(shared.caller))(t)
	for _, cluster := range kubeconfig.Clusters {
		cluster.Server, cluster.TLSServerName = server.URL, ""
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	w.caller = filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*kubeconfig, w.caller))
	v, r := w.converged()
	if read.Load() != 2 {
		t.Errorf("the Secret was read %d times, want before and after the plugin was asked", read.Load())
	}
	if refused.Load() != 1 || v.Showing != 1 || !v.Converged || r.status != 0 {
		t.Errorf("%d WebSockets were tried, want 1; status %d, %+v", refused.Load(), r.status, v)
	}
}
