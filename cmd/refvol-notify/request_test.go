package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/refvol/refvol/internal/leak"
)

func TestRequest(t *testing.T) {
	secret := leak.NewValue()
	elsewhere, reached := called(t)
	var got atomic.Value
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r.Method + " " + r.URL.Path)
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		case "/bad":
			http.Error(w, secret, http.StatusInternalServerError)
		case "/slow":
			<-release
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	for args, want := range map[string]string{
		"--url=" + server.URL + "/ok":                                   "",
		"--url=" + server.URL + "/none --status=204":                    "",
		"--url=" + server.URL + "/ok --status=204":                      "status 200 is not from 204 to 204: set --status, if it means success",
		"--url=" + server.URL + "/bad":                                  "status 500 is not from 200 to 299: set --status, if it means success",
		"--url=" + server.URL + "/redirect":                             "status 307 is not from 200 to 299: set --status, if it means success",
		"--url=" + server.URL + "/slow?x=" + secret + " --timeout=50ms": "context deadline exceeded",
		"--url=" + server.URL + "/ok --method=PUT":                      "",
	} {
		err := request(t.Context(), mustParse(t, append(strings.Fields(args), "--dir=/a")...))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, not %q", args, err, want)
		}
		if err != nil {
			if err := leak.Check("the error", err.Error()); err != nil {
				t.Error(err)
			}
		}
		if strings.Contains(args, "PUT") && got.Load() != "PUT /ok" {
			t.Errorf("the server got %v", got.Load())
		}
	}
	if reached.Load() != 0 {
		t.Errorf("%d requests reached another server", reached.Load())
	}
}

// localhost is never looked up, and is tried with both addresses. Other hosts get no connection.
func TestDialLoopback(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "localhost": true, "10.1.2.3": false, "example.com": false, "0.0.0.0": false} {
		conn, err := dialLoopback(context.Background(), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want || !want && !strings.Contains(err.Error(), "is not a loopback address") {
			t.Errorf("%s: %v", host, err)
		}
	}
}
