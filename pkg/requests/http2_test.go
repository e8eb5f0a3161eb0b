package requests

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// peer is an HTTP/2 server with 100 streams per connection, as the API server, and a client of it. They talk in memory, so that a bubble's
// fake time passes only while both wait.
type peer struct {
	*httptest.Server
	dials atomic.Int64
	// dial replaces the dial to the server; nil means no replacement.
	dial     atomic.Pointer[Dial]
	base     *http.Transport
	requests *Requests
	client   http.RoundTripper
}

// withPeer runs a test with fake time and a peer, which it ends.
func withPeer(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, p *peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := bufconn.Listen(1 << 16)
		p := &peer{
			Server:   &httptest.Server{Listener: listener, EnableHTTP2: true, Config: &http.Server{Handler: handler, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 100}}},
			requests: New(),
		}
		p.StartTLS()
		p.base = utilnet.SetTransportDefaults(&http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: OneAtATime(func(ctx context.Context, network, address string) (net.Conn, error) {
				p.dials.Add(1)
				if dial := p.dial.Load(); dial != nil {
					return (*dial)(ctx, network, address)
				}
				return listener.DialContext(ctx)
			}),
		})
		p.client = p.requests.Wrap(p.base, true)
		defer func() {
			p.base.CloseIdleConnections()
			p.CloseClientConnections()
			p.Close()
			after(time.Minute) // net/http's dials outlive their requests
		}()
		test(t, p)
	})
}

func (p *peer) get(ctx context.Context, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(With(ctx, ordinary), http.MethodGet, p.URL+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return p.client.RoundTrip(r)
}

// open answers a watch.
func open(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// watch opens watches, and returns when all are open or have failed. ended waits for their ends.
func (p *peer) watch(ctx context.Context, n int) (failed int64, ended func()) {
	var opened, all sync.WaitGroup
	var failures atomic.Int64
	for range n {
		opened.Add(1)
		all.Go(func() {
			resp, err := p.get(ctx, "/watch")
			if err != nil {
				failures.Add(1)
			}
			opened.Done()
			if err == nil {
				defer resp.Body.Close()
				_, _ = io.Copy(io.Discard, resp.Body)
			}
		})
	}
	opened.Wait()
	return failures.Load(), all.Wait
}

// Without OneAtATime, net/http makes a handshake for each request that finds no free stream.
func TestHandshakes(t *testing.T) {
	withPeer(t, open, func(t *testing.T, p *peer) {
		ctx, cancel := context.WithCancel(t.Context())
		failed, ended := p.watch(ctx, 500)
		if n := p.dials.Load(); n > 6 || failed > 0 {
			t.Errorf("%d handshakes for 500 watches, %d failed", n, failed)
		}
		cancel()
		ended()
	})
}

// A request without headers ends. Other streams of its connection and other requests are not affected.
func TestAnswerTime(t *testing.T) {
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			<-r.Context().Done()
			return
		}
		open(w, r)
	}
	withPeer(t, handler, func(t *testing.T, p *peer) {
		p.base.ResponseHeaderTimeout = AnswerTimeout
		ctx, cancel := context.WithCancel(t.Context())
		_, ended := p.watch(ctx, 50)
		resp, err := p.get(ctx, "/silent")
		if err == nil {
			resp.Body.Close()
			t.Error("the silent request has an answer")
		} else if !strings.Contains(err.Error(), "timeout awaiting response headers") {
			t.Error(err)
		}
		if _, err := p.requests.Err(ordinary.Account); err != nil {
			t.Errorf("all requests wait: %v", err)
		}
		resp, err = p.get(ctx, "/watch")
		if err != nil || p.dials.Load() != 1 {
			t.Errorf("%v after %d handshakes", err, p.dials.Load())
		}
		cancel()
		if err == nil {
			resp.Body.Close()
		}
		ended()
	})
}

// The server sends GOAWAY while requests wait for their headers. net/http repeats them at once on other connections. Requests that wait for
// their turn open none.
func TestGoAway(t *testing.T) {
	const queued = 90
	var slow atomic.Bool
	var release chan struct{}
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/last" {
			w.Header().Set("Connection", "close") // for this net/http sends GOAWAY
			return
		}
		if slow.Load() {
			select {
			case <-release:
			case <-r.Context().Done():
				return
			}
		}
		open(w, r)
	}
	withPeer(t, handler, func(t *testing.T, p *peer) {
		release = make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		_, ended := p.watch(ctx, 50)
		slow.Store(true)
		var failed int64
		var queue sync.WaitGroup
		var queueEnded func()
		queue.Go(func() { failed, queueEnded = p.watch(ctx, queued) })
		synctest.Wait()
		resp, err := p.get(ctx, "/last")
		must(t, err)
		resp.Body.Close()
		slow.Store(false)
		close(release)
		queue.Wait()
		if n := p.dials.Load(); n > 4+ordinarySlots || failed > 0 {
			t.Errorf("%d handshakes, %d failed", n, failed)
		}
		cancel()
		ended()
		queueEnded()
	})
}

// A server that accepts connections and stalls gets few of them.
func TestStalledHandshake(t *testing.T) {
	withPeer(t, open, func(t *testing.T, p *peer) {
		var stalled Dial = func(context.Context, string, string) (net.Conn, error) {
			conn, _ := net.Pipe()
			return conn, nil
		}
		p.dial.Store(&stalled)
		p.base.TLSHandshakeTimeout = time.Second
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 200 {
			all.Go(func() {
				if resp, err := p.get(ctx, "/watch"); err == nil {
					resp.Body.Close()
				}
			})
		}
		all.Wait()
		if n := p.dials.Load(); n < 2 || n > 12 {
			t.Errorf("%d handshakes in 5 s", n)
		}
	})
}

// While no new connection can be opened, because the next API server is gone, a request that finds a free stream does not wait.
func TestALiveConnectionWaitsForNoDial(t *testing.T) {
	withPeer(t, open, func(t *testing.T, p *peer) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		first, endFirst := context.WithCancel(ctx)
		_, firstEnded := p.watch(first, 1)
		_, ended := p.watch(ctx, 99)
		var gone Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case <-time.After(5 * time.Second):
			case <-ctx.Done():
			}
			return nil, errors.New("no route to host")
		}
		p.dial.Store(&gone)
		waiting, stop := context.WithCancel(ctx)
		var queue sync.WaitGroup
		for range 3 * ordinarySlots { // the connection is full: these need another one
			queue.Go(func() {
				if resp, err := p.get(waiting, "/watch"); err == nil {
					resp.Body.Close()
				}
			})
		}
		for p.dials.Load() < 2 {
			<-time.After(time.Millisecond)
		}
		endFirst()
		firstEnded()
		began := time.Now()
		for {
			r, err := http.NewRequestWithContext(With(ctx, urgent), http.MethodGet, p.URL+"/urgent", http.NoBody)
			must(t, err)
			if resp, err := p.client.RoundTrip(r); err == nil {
				resp.Body.Close()
				break
			}
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the request took %s", took)
		}
		stop()
		queue.Wait()
		cancel()
		ended()
	})
}
