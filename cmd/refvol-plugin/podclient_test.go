package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

// addHeader is a transport that adds a header, as plugins of a kubeconfig do.
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
	if err := os.WriteFile(tokenFile, []byte("own-token"), 0o600); err != nil {
		t.Fatal(err)
	}
	key, cert := selfSigned(t)
	config := &rest.Config{
		Host: server.URL, BearerToken: "own-token", BearerTokenFile: tokenFile,
		Impersonate: rest.ImpersonationConfig{UserName: "admin", Groups: []string{"system:masters"}},
		TLSClientConfig: rest.TLSClientConfig{
			CAData:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			KeyData: key, CertData: cert,
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
	client, err := newPodClient(ownCredentials(t, server), tokens, requests.New())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Core().Client.CloseIdleConnections()
	if _, err := client.ConfigMaps("shop").Get(authz.As(t.Context(), pod.Account()), "app", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
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

// selfSigned returns a key and a self-signed certificate, in PEM.
func selfSigned(t *testing.T) (key, cert []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
