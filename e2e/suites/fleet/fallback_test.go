package fleet

import (
	"crypto/x509"
	"encoding/pem"
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
)

// TestSPDY stands a proxy that knows no WebSocket before the API server.
func TestSPDY(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live", nil)
	target, err := url.Parse(shared.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(shared.Config())
	config.NextProtos = []string{"http/1.1"} // HTTP/2 has no upgrades
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var refused, upgraded atomic.Int32
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = target.Host
	}}
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

	kubeconfig, err := clientcmd.LoadFromFile(shared.caller)
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range kubeconfig.Clusters {
		cluster.Server, cluster.TLSServerName = server.URL, ""
		cluster.CertificateAuthorityData = certificate(server.Certificate())
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		t.Fatal(err)
	}
	v, r := w.convergedAs(path)
	w.expect(v, r)
	if refused.Load() != 1 || upgraded.Load() != 1 || v.Showing != 1 {
		t.Errorf("%d WebSockets were tried, %d other upgrades; %d volumes show it; want 1 of each", refused.Load(), upgraded.Load(), v.Showing)
	}
}

func certificate(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
