package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// addHeader adds a header, as plugins of a kubeconfig do.
type addHeader struct{ http.RoundTripper }

func (a addHeader) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("X-Plugin", "own")
	return a.RoundTripper.RoundTrip(req)
}

// ownCredentials returns a client configuration with every credential that can be combined.
func ownCredentials(t *testing.T, server *httptest.Server) *rest.Config {
	t.Helper()
	tokenFile := filepath.Join(t.TempDir(), "token")
	must.Do(t, os.WriteFile(tokenFile, []byte("own-token"), 0o600))
	own := server.TLS.Certificates[0] // any certificate will do
	key := must.Get(x509.MarshalPKCS8PrivateKey(own.PrivateKey))(t)
	config := &rest.Config{
		Host: server.URL, BearerToken: "own-token", BearerTokenFile: tokenFile,
		Impersonate: rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}},
		TLSClientConfig: rest.TLSClientConfig{
			CAData:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			KeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]}),
		},
		AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "none"},
	}
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return addHeader{rt} })
	return config
}

// Pods' requests carry the pod's token, and nothing of the plugin's.
func TestPodClientHasNothingOfThePlugins(t *testing.T) {
	seen := make(chan *http.Request, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}})
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()

	tokens := &authz.Tokens{}
	pod := volume.Pod{Namespace: "shop", Name: "web-0", UID: "u", ServiceAccount: "web"}
	tokens.Put(pod, "v", volume.NewToken("pod-token", time.Now().Add(time.Hour)))
	client := must.Get(newPodClient(ownCredentials(t, server), tokens, requests.New()))(t)
	defer client.Core().Client.CloseIdleConnections()
	must.Get(client.ConfigMaps("shop").Get(authz.As(t.Context(), pod.Account()), "app", metav1.GetOptions{}))(t)
	r := <-seen
	if got := r.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer pod-token" || r.Proto != "HTTP/2.0" {
		t.Errorf("it came by %s with %q", r.Proto, got)
	}
	if len(r.TLS.PeerCertificates) > 0 {
		t.Error("it came with the plugin's certificate")
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") || name == "X-Plugin" {
			t.Errorf("it came with %s", name)
		}
	}
	if _, err := client.ConfigMaps("shop").Get(t.Context(), "app", metav1.GetOptions{}); err == nil {
		t.Error("a request of nobody was sent")
	}
}

// TestOnlyOwnRefusalsAreTold: a refusal of what the plugin asks for as the node says nothing of the plugin's rights.
func TestOnlyOwnRefusalsAreTold(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	for _, isOwn := range []bool{true, false} {
		r := requests.New()
		client, err := newNodeClient(config, "node-1", r)
		if isOwn {
			client, err = newClient(config, r)
		}
		must.Do(t, err)
		if client.Core().GetRateLimiter() != nil {
			t.Error("client-go delays requests, beside pkg/requests")
		}
		_, err = client.ConfigMaps("shop").Get(t.Context(), "app", metav1.GetOptions{})
		client.Core().Client.CloseIdleConnections()
		if told := len(r.Refused()) == 1; told != isOwn || !apierrors.IsForbidden(err) {
			t.Errorf("the plugin's own request %t: told %t, %v", isOwn, told, err)
		}
	}
}

// TestConnectionsHaveLimits: a server that accepts a connection and then says nothing holds up no request for ever.
func TestConnectionsHaveLimits(t *testing.T) {
	base := must.Get(transportOf(must.Get(newHTTPClient(&rest.Config{Host: "https://127.0.0.1:1"}))(t).Transport))(t)
	for what, limit := range map[string]time.Duration{
		"handshake": base.TLSHandshakeTimeout, "answer": base.ResponseHeaderTimeout, "silence": base.HTTP2.SendPingTimeout, "ping": base.HTTP2.PingTimeout,
	} {
		if limit <= 0 {
			t.Errorf("%s: %v", what, limit)
		}
	}
}
