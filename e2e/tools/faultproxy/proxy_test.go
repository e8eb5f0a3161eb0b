package faultproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const watchPath = "/api/v1/namespaces/ns/configmaps?watch=true&fieldSelector=metadata.name%3Dapp"

// upstream is an API server that knows one ConfigMap, in a new version for each request.
type upstream struct {
	t       *testing.T
	version atomic.Int64
}

// ServeHTTP answers a watch with the state, its end, and one more version, and keeps it
// open; anything else with a text.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version := int(u.version.Add(2))
	if r.URL.Query().Get("watch") != "true" {
		fmt.Fprintf(w, "answer %d", version)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		u.event(w, watch.Added, version, nil)
		u.event(w, watch.Bookmark, version, map[string]string{initialEventsEnd: "true"})
	}
	u.event(w, watch.Modified, version+1, nil)
	flush(w)
	<-r.Context().Done()
}

func (u *upstream) event(w io.Writer, kind watch.EventType, version int, annotations map[string]string) {
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	encoder := scheme.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Version: "v1"})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "app", ResourceVersion: fmt.Sprint(version), Annotations: annotations}}
	object, err := runtime.Encode(encoder, cm)
	if err != nil {
		u.t.Error(err)
		return
	}
	body, err := (&metav1.WatchEvent{Type: string(kind), Object: runtime.RawExtension{Raw: object}}).Marshal()
	if err != nil {
		u.t.Error(err)
		return
	}
	_, _ = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
}

// start returns a proxy before an upstream.
func start(t *testing.T, o Options) *Proxy {
	t.Helper()
	server := httptest.NewUnstartedServer(&upstream{t: t})
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	o.Target = &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	p, err := Start(o)
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

// client returns a client that speaks HTTP/2, and keeps its connections, to a proxy.
func client(t *testing.T, p *Proxy) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(p.ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get returns the status and the body, or the error.
func get(ctx context.Context, c *http.Client, p *Proxy, path string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+p.network.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

func inject(t *testing.T, p *Proxy, f Fault) {
	t.Helper()
	if err := p.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func wantAnswer(t *testing.T, c *http.Client, p *Proxy) {
	t.Helper()
	if code, body, err := get(t.Context(), c, p, "/api/v1/namespaces/ns/configmaps/app"); code != http.StatusOK {
		t.Errorf("answer = %d %q, %v, want 200", code, body, err)
	}
}

func TestStatuses(t *testing.T) {
	const list = "/api/v1/namespaces/ns/configmaps?fieldSelector=metadata.name%3Dapp"
	for _, tc := range []struct {
		fault       Fault
		noWatchList bool
		path        string
		want        int
	}{
		{None, false, list, 200},
		{TooManyRequests, false, list, 429},
		{ServerError, false, list, 500},
		{BadGateway, false, list, 502},
		{Gone, false, list, 200},
		{Gone, false, watchPath + "&resourceVersion=3", 410},
		{TooLarge, false, list, 504},
		{TooLarge, false, watchPath + "&sendInitialEvents=true", 504},
		{None, true, watchPath + "&sendInitialEvents=true", 422},
		{GoAway, false, list, 200},
		{Unavailable, false, list, 503},
		{Unauthorized, false, list, 401},
		{SecretsFail, false, list, 200},
	} {
		t.Run(fmt.Sprint(tc.fault, " ", tc.want), func(t *testing.T) {
			p := start(t, Options{NoWatchList: tc.noWatchList})
			c := client(t, p)
			inject(t, p, tc.fault)
			for range 2 {
				if code, body, err := get(t.Context(), c, p, tc.path); code != tc.want {
					t.Errorf("answer = %d %q, %v, want %d", code, body, err, tc.want)
				}
			}
			requests := p.Requests()
			if len(requests) != 2 || requests[0].Object != (Object{"configmaps", "ns", "app"}) || requests[0].Fault != tc.fault {
				t.Errorf("requests = %+v", requests)
			}
			wantConnections := 1
			if tc.fault == GoAway {
				wantConnections = 2
			}
			if _, n := p.Connections(); n != wantConnections {
				t.Errorf("%d connections were made, want %d", n, wantConnections)
			}
			inject(t, p, None)
			wantAnswer(t, c, p)
		})
	}
}

func TestRefused(t *testing.T) {
	p := start(t, Options{})
	c := client(t, p)
	wantAnswer(t, c, p)
	inject(t, p, Refused)
	c.CloseIdleConnections()
	if _, _, err := get(t.Context(), c, p, "/x"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("error = %v, want a refused connection", err)
	}
	inject(t, p, None)
	wantAnswer(t, c, p)
}

func TestCut(t *testing.T) {
	p := start(t, Options{})
	c := client(t, p)
	wantAnswer(t, c, p)
	inject(t, p, Cut)
	for range 3 {
		c.CloseIdleConnections()
		if _, body, err := get(t.Context(), c, p, "/x"); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("answer = %q, %v, want a connection that breaks", body, err)
		}
	}
	if open, n := p.Connections(); open != 0 || n < 3 {
		t.Errorf("%d connections are open of %d, want none, and each attempt counted", open, n)
	}
	inject(t, p, None)
	wantAnswer(t, c, p)
}

func TestHalfOpenConnectionsStayDeaf(t *testing.T) {
	p := start(t, Options{})
	c, other := client(t, p), client(t, p)
	wantAnswer(t, c, p)
	inject(t, p, HalfOpen)
	for _, c := range []*http.Client{c, other} { // an old connection, and a new one
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, body, err := get(ctx, c, p, "/x"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("answer = %q, %v, want none", body, err)
		}
		cancel()
	}
	inject(t, p, None)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, body, err := get(ctx, c, p, "/x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("answer over the deaf connection = %q, %v, want none", body, err)
	}
	wantAnswer(t, client(t, p), p)
}

func TestWhatIsHeldUpArrivesLater(t *testing.T) {
	for _, fault := range []Fault{Partition, Slow, Stalled} {
		t.Run(fault.String(), func(t *testing.T) {
			p := start(t, Options{})
			c := client(t, p)
			wantAnswer(t, c, p)
			inject(t, p, fault)
			answered := make(chan error, 1)
			go func() {
				_, _, err := get(t.Context(), c, p, "/x")
				answered <- err
			}()
			select {
			case err := <-answered:
				t.Fatalf("an answer came during the fault: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			inject(t, p, None)
			if err := <-answered; err != nil {
				t.Error(err)
			}
			if _, n := p.Connections(); n != 1 {
				t.Errorf("%d connections were made, want one", n)
			}
		})
	}
}
