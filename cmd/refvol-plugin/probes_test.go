package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// get returns the code and the body of a path.
func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestProbes(t *testing.T) {
	var ready, dead atomic.Bool
	probe := func(context.Context) error {
		if dead.Load() {
			return errors.New("probe csi.sock: no answer")
		}
		return nil
	}
	scrape := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("# HELP\n")) })
	ctx, failed := context.WithCancelCause(t.Context())
	defer failed(nil)
	p, err := startHTTP("http-address", "127.0.0.1:0", monitoring(probe, readiness(ctx, nil, unchecked{}.Ready, ready.Load), scrape), failed)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	url := "http://" + p.address
	const notRegistered = "[+]shared-mounts ok\n[+]rights ok\n[-]registration: the kubelet has not registered the driver yet\n"
	for _, test := range []struct {
		ready, dead bool
		path        string
		code        int
		body        string
	}{
		{false, false, "/healthz", http.StatusOK, "ok\n"},
		{false, false, "/readyz", http.StatusServiceUnavailable, notRegistered},
		{true, false, "/readyz", http.StatusOK, "[+]shared-mounts ok\n[+]rights ok\n[+]registration ok\n"},
		{true, false, "/healthz", http.StatusOK, "ok\n"},
		{true, true, "/healthz", http.StatusServiceUnavailable, "probe csi.sock: no answer\n"},
		{false, false, "/readyz", http.StatusServiceUnavailable, notRegistered},
		{true, false, "/metrics", http.StatusOK, "# HELP\n"},
		{true, false, "/", http.StatusNotFound, "404 page not found\n"},
	} {
		ready.Store(test.ready)
		dead.Store(test.dead)
		if code, body := get(t, client, url+test.path); code != test.code || body != test.body {
			t.Errorf("%s with ready %t: got %d %q, want %d %q", test.path, test.ready, code, body, test.code, test.body)
		}
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if ctx.Err() != nil {
		t.Errorf("a stop counts as a failure: %v", context.Cause(ctx))
	}
	if conn, err := net.Dial("tcp", p.address); err == nil {
		conn.Close()
		t.Error("it still listens")
	}
}

func TestProbesAtAnAddressInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, err = startHTTP("http-address", listener.Addr().String(), http.NotFoundHandler(), nil)
	if err == nil || !strings.HasPrefix(err.Error(), "serve --http-address: ") {
		t.Errorf("got %v", err)
	}
}
