package faultproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const watchPath = "/api/v1/namespaces/ns/configmaps?watch=true&fieldSelector=metadata.name%3Dapp"

// upstream is an API server that knows one ConfigMap, in a new version for each request.
type upstream struct {
	version atomic.Int64
}

// ServeHTTP answers a watch with the state, its end, and one more version, and keeps it open; anything else with a
// text.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	version := int(u.version.Add(2))
	if r.URL.Query().Get("watch") != "true" {
		fmt.Fprintf(w, "answer %d", version)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		u.event(w, watch.Added, version, nil)
		u.event(w, watch.Bookmark, version, map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	u.event(w, watch.Modified, version+1, nil)
	send(w, nil)
	<-r.Context().Done()
}

func (u *upstream) event(w io.Writer, kind watch.EventType, version int, annotations map[string]string) {
	_, _ = w.Write(eventFrame(kind, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "app", ResourceVersion: fmt.Sprint(version), Annotations: annotations},
	}))
}

// start returns a proxy before an upstream.
func start(t *testing.T, o Options) *Proxy {
	t.Helper()
	server := httptest.NewUnstartedServer(&upstream{})
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
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: serverName, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
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

// counted returns a context whose requests count the connections that are made for them.
func counted(ctx context.Context) (context.Context, *int) {
	made := new(int)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			*made++
		}
	}}), made
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
			ctx, connections := counted(t.Context())
			for range 2 {
				if code, body, err := get(ctx, c, p, tc.path); code != tc.want {
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
			if *connections != wantConnections {
				t.Errorf("%d connections were made, want %d", *connections, wantConnections)
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
	for _, fault := range []Fault{Partition, Stalled} {
		t.Run(fault.String(), func(t *testing.T) {
			p := start(t, Options{})
			c := client(t, p)
			wantAnswer(t, c, p)
			inject(t, p, fault)
			ctx, connections := counted(t.Context())
			answered := make(chan error, 1)
			go func() {
				_, _, err := get(ctx, c, p, "/x")
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
			if *connections != 0 {
				t.Errorf("%d more connections were made, want none", *connections)
			}
		})
	}
}
