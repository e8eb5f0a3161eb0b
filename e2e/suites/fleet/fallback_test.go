package fleet

import (
	"bytes"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/internal/leak"
)

// TestThroughProxy stands a proxy that knows no WebSocket before the API server. It sees no value.
func TestThroughProxy(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live")
	target := must(url.Parse(shared.Config().Host))(t)
	config := rest.AnonymousClientConfig(shared.Config())
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	transport := must(rest.TransportFor(config))(t)
	var read, refused, upgraded atomic.Int32
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
		switch upgrade := strings.ToLower(r.Header.Get("Upgrade")); {
		case upgrade == "websocket":
			refused.Add(1)
			http.Error(rw, "no WebSocket here", http.StatusBadGateway)
			return
		case upgrade != "":
			upgraded.Add(1)
		}
		proxy.ServeHTTP(rw, r)
	}))
	defer server.Close()

	kubeconfig := must(clientcmd.LoadFromFile(shared.caller))(t)
	for _, cluster := range kubeconfig.Clusters {
		cluster.Server, cluster.TLSServerName = server.URL, ""
		cluster.CertificateAuthorityData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	w.caller = filepath.Join(t.TempDir(), "kubeconfig")
	fatal(t, clientcmd.WriteToFile(*kubeconfig, w.caller))
	v, r := w.converged()
	if read.Load() != 2 {
		t.Errorf("the Secret was read %d times, want before and after the plugin was asked", read.Load())
	}
	if refused.Load() != 1 || upgraded.Load() != 1 || v.Showing != 1 || !v.Converged || r.status != 0 {
		t.Errorf("%d WebSockets were tried, %d other upgrades; want 1 of each; status %d, %+v", refused.Load(), upgraded.Load(), r.status, v)
	}
}
