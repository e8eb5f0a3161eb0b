package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/requests"
	"github.com/refvol/refvol/pkg/volume"
)

func TestValuesThatAreNotSupported(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	const (
		profiles = "must be a loopback address, such as 127.0.0.1:6060: profiles are not for the network"
		names    = "must be a loopback address, such as 127.0.0.1:9811: the names of all pods and objects are not for the network"
	)
	fails(t, "serve", map[string]string{
		"--change-detection=watch":                      `--change-detection: Unsupported value: "watch": supported by this version: "Watch", "Cache", "Get"`,
		"--change-detection=":                           `--change-detection: Unsupported value: "": supported by this version: "Watch", "Cache", "Get"`,
		"--identity=Pod":                                `--identity: Unsupported value: "Pod": supported by this version: "plugin", "pod", "node"`,
		"--identity=node --cross-namespace":             "--cross-namespace: Forbidden: with --identity=node: a node may read only what the specs of its pods name, and these name objects of their own namespaces",
		"--identity=node --node-name=":                  "--node-name: Required value: or set NODE_NAME",
		"--identity=node --node-name=Node_1":            `--node-name: Invalid value: "Node_1": must be the name of a Node object: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')`,
		"--default-spread=2h":                           "--default-spread: Invalid value: 2h0m0s: must be a duration from 1s to 1h, such as 5m, or 0s for none",
		"--max-volume-size=1Gi":                         `--max-total-size: Invalid value: "512Mi": must not be less than --max-volume-size, which is 1Gi`,
		"--max-total-size=16Mi":                         `--max-total-size: Invalid value: "16Mi": must not be less than --max-volume-size, which is 32Mi`,
		"--publish-wait=-1s":                            "--publish-wait: Invalid value: -1s: must not be negative",
		"--resync-interval=0":                           "--resync-interval: Invalid value: 0s: must be positive",
		"--profiling-address=:6060":                     `--profiling-address: Invalid value: ":6060": ` + profiles,
		"--profiling-address=localhost:6060":            `--profiling-address: Invalid value: "localhost:6060": ` + profiles, // whatever that resolves to
		"--profiling-address=6060":                      `--profiling-address: Invalid value: "6060": must be a loopback address and a port, such as 127.0.0.1:6060`,
		"--status-address=0.0.0.0:9811":                 `--status-address: Invalid value: "0.0.0.0:9811": ` + names,
		"--status-address=localhost:9811":               `--status-address: Invalid value: "localhost:9811": ` + names,
		"--status-address=:9811":                        `--status-address: Invalid value: ":9811": ` + names,
		"--status-address=[::ffff:10.0.0.1]:9811":       `--status-address: Invalid value: "[::ffff:10.0.0.1]:9811": ` + names,
		"--status-address=127.0.0.1":                    `--status-address: Invalid value: "127.0.0.1": must be a loopback address and a port, such as 127.0.0.1:9811`,
		"--startup-taint=x:Never --registration-dir=/r": `--startup-taint: Invalid value: "x:Never": must be the key of a taint, without value and effect: name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')`,
		"--startup-taint=x":                             "--startup-taint: needs --registration-dir: the taint goes when the kubelet has confirmed the registration",
		"--node-name=":                                  "--node-name: Required value: or set NODE_NAME",
		"--identity=none --node-name=": `--identity: Unsupported value: "none": supported by this version: "plugin", "pod", "node"` +
			"\n--node-name: Required value: or set NODE_NAME",
	})
}

func TestSizes(t *testing.T) {
	const form = "must be a positive quantity such as 32Mi"
	for _, test := range []struct {
		volume, total, cached string
		want                  sizes
		err                   string
	}{
		{volume: "32Mi", total: "512Mi", cached: "256Mi", want: sizes{32 << 20, 512 << 20, 256 << 20}},
		{volume: "1", total: "1e3", cached: "8", want: sizes{1, 1000, 8}},
		{volume: "1Mi", total: "1024Ki", cached: "1", want: sizes{1 << 20, 1 << 20, 1}},
		{volume: "1Mi", total: "1M", cached: "1", err: `--max-total-size: Invalid value: "1M": must not be less than --max-volume-size, which is 1Mi`},
		{volume: "1k", total: "1Gi", cached: "1Gi", want: sizes{1000, 1 << 30, 1 << 30}},
		{volume: "", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "": ` + form},
		{volume: "0", total: "1", cached: "1", err: `--max-volume-size: Invalid value: "0": ` + form},
		{volume: "1", total: "-1Mi", cached: "1", err: `--max-total-size: Invalid value: "-1Mi": ` + form},
		{volume: "16MB", total: "big", cached: "0", err: `--max-volume-size: Invalid value: "16MB": ` + form + "\n" +
			`--max-total-size: Invalid value: "big": ` + form + "\n" + `--max-cached-size: Invalid value: "0": ` + form},
	} {
		o := &serveOptions{maxVolumeSize: test.volume, maxTotalSize: test.total, maxCachedSize: test.cached}
		got, err := o.sizes()
		if test.err != "" {
			if err == nil || err.Error() != test.err {
				t.Errorf("%q, %q: got %v, want %s", test.volume, test.total, err, test.err)
			}
			continue
		}
		if err != nil || got != test.want {
			t.Errorf("%q, %q, %q: got %v, %v", test.volume, test.total, test.cached, got, err)
		}
	}
}

// A failed start is an error of run, whose text says what was tried.
func TestAStartThatFails(t *testing.T) {
	t.Setenv("NODE_NAME", "node-1")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("KUBECONFIG", "")
	none := filepath.Join(t.TempDir(), "none")
	kubeconfig := kubeconfig(t)
	fails(t, "serve --http-address= --v=10", map[string]string{
		"--kubeconfig=" + none + " --max-volume-size=x": `...--max-volume-size: Invalid value: "x"`,
		"--kubeconfig=" + none:                          "...configure the client of the API server: ",
		"":                                              "...configure the client of the API server: ",
		"--kubeconfig=" + kubeconfig + " --identity=pod --kubelet-dir=" + none:  "..." + none,
		"--kubeconfig=" + kubeconfig + " --identity=node --kubelet-dir=" + none: "..." + none,
		"--kubeconfig=" + kubeconfig + " --kubelet-dir=" + none:                 "..." + none,
		"--kubeconfig=" + kubeconfig + " --driver-name=../x":                    "...mount options: Driver: Invalid value",
	})
}

// kubeconfig returns the path of a kubeconfig whose API server does not answer.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n"+
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600))
	return path
}

func TestHealthOfADeadSocket(t *testing.T) {
	dead := func(context.Context) error { return errors.New("probe csi.sock: no answer") }
	answer := httptest.NewRecorder()
	monitoring(dead, nil, http.NotFoundHandler()).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil))
	if body := answer.Body.String(); answer.Code != http.StatusServiceUnavailable || body != "probe csi.sock: no answer\n" {
		t.Errorf("got %d %q", answer.Code, body)
	}
}

// TestWhoReadsNothing: an answer that a client does not read ends, so that others are answered.
func TestWhoReadsNothing(t *testing.T) {
	ended := make(chan error, 1)
	large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var err error
		for block := make([]byte, 1<<20); err == nil; _, err = w.Write(block) {
		}
		ended <- err
	})
	server, err := startHTTP("http-address", "127.0.0.1:0", large, 100*time.Millisecond, nil)
	must(t, err)
	conn, err := net.Dial("tcp", server.address)
	must(t, err)
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: test\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the answer ended with %v", err)
	}
	if err := server.stop(); err != nil {
		t.Error(err)
	}
}

// TestSharedProbe: many requests cause one probe per second, and a request that ends early does not affect other answers.
func TestSharedProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := 0
		shared := &sharedProbe{probe: func(ctx context.Context) error {
			probes++
			return ctx.Err()
		}}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var asking sync.WaitGroup
		for range 50 {
			asking.Go(func() {
				if err := shared.ask(gone); err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
		if probes != 1 {
			t.Errorf("%d probes for 50 requests at once", probes)
		}
		<-time.After(probeAge)
		if err := shared.ask(gone); err != nil || probes != 2 {
			t.Errorf("%d probes a second later, %v", probes, err)
		}
	})
}

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
	must(t, os.WriteFile(tokenFile, []byte("own-token"), 0o600))
	own := server.TLS.Certificates[0] // any certificate will do
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	must(t, err)
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
	client, err := newPodClient(ownCredentials(t, server), tokens, requests.New())
	must(t, err)
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
