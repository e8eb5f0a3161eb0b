package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// TestANodeThatDoesNotAnswer: a request ends with its context, also while a stream is not acknowledged.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	release := make(chan struct{})
	opened := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			http.Error(w, "no WebSocket", http.StatusBadRequest)
			return
		}
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(httpstream.Stream, <-chan struct{}) error {
			opened <- struct{}{}
			<-release
			return nil
		})
		if connection != nil {
			defer connection.Close()
			<-release
		}
	}))
	defer server.Close()
	defer close(release)
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("long enough")
	go func() {
		<-opened
		cancel(enough)
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:9811/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	response, err := (&podTransport{config, client.CoreV1().RESTClient(), "refvol-system", "plugin-1"}).RoundTrip(request)
	if err == nil {
		response.Body.Close()
	}
	if took := time.Since(began); !errors.Is(err, enough) || took > 20*time.Second {
		t.Errorf("got %v after %s", err, took)
	}
}

// TestAnAPIServerThatDoesNotAnswer: the connections of a request end with its context, also while the API server, or a proxy in front of
// it, has not answered the upgrade.
func TestAnAPIServerThatDoesNotAnswer(t *testing.T) {
	for name, knowsWebSocket := range map[string]bool{"WebSocket": true, "SPDY": false} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && !knowsWebSocket {
					http.Error(w, "no WebSocket", http.StatusBadRequest)
					return
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_, _ = conn.Read(make([]byte, 1)) // returns when the client closes
				close(closed)
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			enough := errors.New("long enough")
			ctx, cancel := context.WithTimeoutCause(t.Context(), 4*time.Second, enough) // a WebSocket handshake obeys only a deadline
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:9811/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := (&podTransport{config, client.CoreV1().RESTClient(), "refvol-system", "plugin-1"}).RoundTrip(request)
			if err == nil {
				response.Body.Close()
			}
			if !errors.Is(err, enough) {
				t.Errorf("got %v", err)
			}
			select {
			case <-closed:
			case <-time.After(20 * time.Second):
				t.Error("the connection stays open")
			}
		})
	}
}

// TestDeadNodesCollectNothing: with -w a plugin that never answers is asked again and again. Each try frees its resources at its end.
func TestDeadNodesCollectNothing(t *testing.T) {
	const rounds, atOnce = 4, 50
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1)) // returns when the client closes
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	transport := &podTransport{config, client.CoreV1().RESTClient(), "refvol-system", "plugin-1"}
	before := runtime.NumGoroutine()
	for range rounds {
		var round sync.WaitGroup
		for range atOnce {
			round.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost:9811/", http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				if response, err := transport.RoundTrip(request); err == nil {
					response.Body.Close()
					t.Error("a dead node answered")
				}
			})
		}
		round.Wait()
	}
	enough, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for runtime.NumGoroutine() > before+atOnce && enough.Err() == nil {
		pause(enough, 10*time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before+atOnce {
		t.Errorf("%d goroutines after %d questions, %d before", now, rounds*atOnce, before)
	}
}
