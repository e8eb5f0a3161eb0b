package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", server.address)
	if err != nil {
		t.Fatal(err)
	}
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
