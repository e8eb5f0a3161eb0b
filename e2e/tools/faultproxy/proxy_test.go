package faultproxy

import (
	"bufio"
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
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

const (
	listPath  = "/api/v1/namespaces/ns/configmaps?fieldSelector=metadata.name%3Dapp"
	watchPath = listPath + "&watch=true"
)

// upstream is an API server. It answers a watch with an event, and keeps it open.
func upstream(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintln(w, "answer")
	if r.URL.Query().Get("watch") == "true" {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// start returns a proxy before an upstream.
func start(t *testing.T) *Proxy {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(upstream))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p, err := Start(Options{Target: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}})
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
	p := start(t)
	c := client(t, p)
	ctx, connections := counted(t.Context())
	want := func(path string, want int) {
		t.Helper()
		if code, body, err := get(ctx, c, p, path); code != want {
			t.Errorf("answer = %d %q, %v, want %d", code, body, err, want)
		}
	}
	inject(t, p, ServerError)
	want(listPath, 500)
	if requests := p.Requests(); len(requests) != 1 || requests[0] != (Request{Object{"configmaps", "ns", "app"}, "LIST"}) {
		t.Errorf("requests = %+v", requests)
	}
	inject(t, p, Unauthorized)
	want(watchPath, 401)
	inject(t, p, None)
	want(listPath, 200)
	p.InjectFor(ServerError, func(r Request) bool { return r.Resource == "secrets" })
	want("/api/v1/namespaces/ns/secrets/db", 500)
	want(listPath, 200)
	inject(t, p, None)
	want("/api/v1/namespaces/ns/secrets/db", 200)
	if *connections != 1 {
		t.Errorf("%d connections were made, want one", *connections)
	}
}

// TestWatch: events are passed on as they come, and the watch is counted.
func TestWatch(t *testing.T) {
	p := start(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+p.network.address+watchPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client(t, p).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if event, err := bufio.NewReader(response.Body).ReadString('\n'); err != nil || event != "answer\n" {
		t.Errorf("event = %q, %v", event, err)
	}
	if watches := p.Watches(); len(watches) != 1 || watches[Object{"configmaps", "ns", "app"}] != 1 {
		t.Errorf("watches = %v", watches)
	}
	inject(t, p, Cut)
	if rest, err := io.ReadAll(response.Body); err == nil || len(rest) > 0 {
		t.Errorf("the watch goes on with %q, %v, want a connection that breaks", rest, err)
	}
}

func TestRefused(t *testing.T) {
	p := start(t)
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
	p := start(t)
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
	p := start(t)
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
	p := start(t)
	c := client(t, p)
	wantAnswer(t, c, p)
	inject(t, p, Partition)
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
}
