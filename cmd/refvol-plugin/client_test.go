package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/requests"
)

// writeKubeconfig writes a kubeconfig for server that names a token and a CA by file,
// as a pod's service account does, and returns its path.
func writeKubeconfig(t *testing.T, server *httptest.Server, token string) string {
	t.Helper()
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	writeFile(t, filepath.Join(dir, "ca.crt"), string(ca))
	writeFile(t, filepath.Join(dir, "token"), token)
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server.URL, CertificateAuthority: filepath.Join(dir, "ca.crt")}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(dir, "token")}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	path := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// newTLSServer starts a server of HTTP/2 that ends with the test.
func newTLSServer(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func TestClientSpeaksHTTP2WithTheTokenOfTheFile(t *testing.T) {
	seen := make(chan *http.Request, 1)
	server := newTLSServer(t, func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}})
	})
	config, err := loadConfig(writeKubeconfig(t, server, "secret-token"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := newClient(config, requests.New())
	if err != nil {
		t.Fatal(err)
	}
	defer closeIdle(client)
	if _, err := client.ConfigMaps("ns").Get(t.Context(), "app", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	r := <-seen
	if r.Proto != "HTTP/2.0" || r.Header.Get("Authorization") != "Bearer secret-token" {
		t.Errorf("the request came by %s with Authorization %q", r.Proto, r.Header.Get("Authorization"))
	}
}

// closeIdle ends the client's connections.
func closeIdle(client *apiclient.Client) { client.Core().Client.CloseIdleConnections() }

// What a connection may take is set on the transport itself, and on the clone of it
// that follows a change of the CA file.
func TestClientNoticesASilentServer(t *testing.T) {
	server := newTLSServer(t, func(http.ResponseWriter, *http.Request) {})
	config, err := loadConfig(writeKubeconfig(t, server, "token"))
	if err != nil {
		t.Fatal(err)
	}
	other := rest.CopyConfig(config)
	client, err := newHTTPClient(config)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := transportOf(client.Transport)
	if err != nil {
		t.Fatal(err)
	}
	for name, tr := range map[string]*http.Transport{"the transport": transport, "its clone": transport.Clone()} {
		if tr.HTTP2 == nil || tr.HTTP2.SendPingTimeout != 5*time.Second || tr.HTTP2.PingTimeout != 45*time.Second {
			t.Errorf("%s has HTTP/2 settings %+v, want a ping after 5 s that must be answered in 45 s", name, tr.HTTP2)
		}
		if tr.TLSHandshakeTimeout != 5*time.Second {
			t.Errorf("%s gives a TLS handshake %s, want 5 s", name, tr.TLSHandshakeTimeout)
		}
	}
	shared, err := rest.TransportFor(other)
	if err != nil {
		t.Fatal(err)
	}
	if tr, err := transportOf(shared); err != nil || tr == transport || tr.HTTP2 != nil {
		t.Errorf("another client of the same configuration got the same transport, or its settings: %v", err)
	}
}

func TestTransportOfAnythingElse(t *testing.T) {
	if _, err := transportOf(nil); err == nil {
		t.Error("no error for a client without a transport")
	}
}

// A TLS server that accepts and never answers must not hold up a request for long.
func TestHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := newHTTPClient(&rest.Config{
		Host:            "https://" + listener.Addr().String(),
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*connectTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err == nil {
		response.Body.Close()
	}
	if !os.IsTimeout(err) || ctx.Err() != nil {
		t.Errorf("error = %v after %v, want a timeout of the handshake", err, ctx.Err())
	}
}
