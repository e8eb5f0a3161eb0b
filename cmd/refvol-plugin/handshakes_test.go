package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/requests"
)

// A thousand watches cost ten handshakes, and few more.
func TestHandshakesOfManyWatches(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 100}
	var conns atomic.Int64
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	client, err := newHTTPClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	client.Transport = requests.New().Wrap(client.Transport, true)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	var opened, all sync.WaitGroup
	for i := range 1000 {
		opened.Add(1)
		all.Go(func() {
			ctx := requests.With(ctx, requests.Meta{Urgent: i%2 == 0})
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
			if err != nil {
				t.Error(err)
				opened.Done()
				return
			}
			resp, err := client.Do(req)
			opened.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
		})
	}
	opened.Wait()
	if n := conns.Load(); n > 15 {
		t.Errorf("%d connections", n)
	}
	cancel()
	all.Wait()
}
