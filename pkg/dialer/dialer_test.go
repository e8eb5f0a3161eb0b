package dialer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a server of HTTP/2, or of HTTP/1, that answers at once and ends no answer until
// its test ends.
type server struct {
	*httptest.Server
	accepted atomic.Int64
}

func newServer(t *testing.T, streams int, http2 bool) *server {
	t.Helper()
	over := make(chan struct{})
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		if http.NewResponseController(w).Flush() != nil {
			return // the connection was closed, which the client is told
		}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	s.EnableHTTP2 = http2
	s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(over) })
	return s
}

// client returns a client of the server that dials by d, nil for the transport's own way.
func (s *server) client(t *testing.T, d *Dialer) *http.Client {
	t.Helper()
	base := s.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	if d == nil {
		return &http.Client{Transport: base}
	}
	base.DialContext = d.DialContext
	return &http.Client{Transport: d.Wrap(base)}
}

func (s *server) get(t *testing.T, client *http.Client) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return client.Do(req)
}

// open sends n requests, some at once, and leaves their answers open. One that fails, as over
// a connection that was just closed, is sent again.
func (s *server) open(t *testing.T, client *http.Client, n, atOnce int) {
	t.Helper()
	var sending sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for range n {
		slots <- struct{}{}
		sending.Go(func() {
			defer func() { <-slots }()
			var err error
			for range 10 {
				var resp *http.Response
				if resp, err = s.get(t, client); err == nil {
					t.Cleanup(func() { resp.Body.Close() })
					return
				}
				if errors.Is(err, errNotNeeded) {
					break // it must not be seen
				}
			}
			t.Error(err)
		})
	}
	sending.Wait()
}

// patient returns a Dialer for tests that count connections: a busy machine may be slow to hand one over.
func patient(dial Dial) *Dialer {
	d := New(dial)
	d.handOver = time.Second
	return d
}

// TestConnectionsAreSharedByRequestsThatWait counts the connections of many long requests.
func TestConnectionsAreSharedByRequestsThatWait(t *testing.T) {
	const requests, streams, atOnce = 1000, 100, 16
	s := newServer(t, streams, true)
	s.open(t, s.client(t, patient((&net.Dialer{}).DialContext)), requests, atOnce)
	got := s.accepted.Load()
	t.Logf("%d connections", got)
	if got < requests/streams || got > requests/streams+5 {
		t.Errorf("%d connections for %d requests of %d a connection", got, requests, streams)
	}
}

// TestHTTP1 has each request need a connection.
func TestHTTP1(t *testing.T) {
	s := newServer(t, 0, false)
	s.open(t, s.client(t, New((&net.Dialer{}).DialContext)), 40, 16)
	if got := s.accepted.Load(); got != 40 {
		t.Errorf("%d connections for 40 requests, want 40", got)
	}
}

// TestAFailedDialGivesUpTheTurn: the next request dials, and its error is its own.
func TestAFailedDialGivesUpTheTurn(t *testing.T) {
	s := newServer(t, 100, true)
	wrong := errors.New("no route")
	var dials atomic.Int64
	d := patient(func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) <= 3 {
			return nil, wrong
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
	client := s.client(t, d)
	for range 3 {
		if resp, err := s.get(t, client); !errors.Is(err, wrong) {
			if err == nil {
				resp.Body.Close()
			}
			t.Errorf("got %v, want %v", err, wrong)
		}
	}
	s.open(t, client, 20, 20)
	if got := s.accepted.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// TestABrokenConnectionIsReplaced: requests go on after the server has closed connections.
func TestABrokenConnectionIsReplaced(t *testing.T) {
	s := newServer(t, 100, true)
	client := s.client(t, patient((&net.Dialer{}).DialContext))
	for range 20 {
		s.open(t, client, 30, 30)
		s.CloseClientConnections()
	}
	if got := s.accepted.Load(); got > 20+10 {
		t.Errorf("%d connections, want about one each time", got)
	}
}

// TestAHandshakeThatHangsHoldsUpNobodyForLong has the first connection lead nowhere.
func TestAHandshakeThatHangsHoldsUpNobodyForLong(t *testing.T) {
	s := newServer(t, 100, true)
	var dials atomic.Int64
	d := New(func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) > 1 {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		go io.Copy(io.Discard, far) //nolint:errcheck // it ends with the pipe
		return near, nil
	})
	s.open(t, s.client(t, d), 10, 10) // the first, too, goes over the connection of another
	if got := dials.Load(); got < 2 {
		t.Errorf("%d dials", got)
	}
}
