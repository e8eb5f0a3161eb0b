package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

func TestProfiles(t *testing.T) {
	_, failed := context.WithCancelCause(t.Context())
	defer failed(nil)
	s, err := startHTTP("profiling-address", "127.0.0.1:0", profiles(), 0, failed)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	for path, want := range map[string]string{
		"/debug/pprof/goroutine?debug=1": "goroutine profile: total ",
		"/debug/pprof/heap?debug=1":      "heap profile: ",
		"/debug/pprof/cmdline":           "Unknown profile",
		"/healthz":                       "404 page not found",
	} {
		if _, body := get(t, client, "http://"+s.address+path); !strings.Contains(body, want) {
			t.Errorf("%s: got %.60q, want %q in it", path, body, want)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestLoopbackAddresses(t *testing.T) {
	for _, address := range []string{"", "127.0.0.1:6060", "127.1.2.3:0", "[::1]:6060"} {
		for _, validate := range []func(string) error{validateProfilingAddress, validateStatusAddress} {
			if err := validate(address); err != nil {
				t.Error(err)
			}
		}
	}
}
