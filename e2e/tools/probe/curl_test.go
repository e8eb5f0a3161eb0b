package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCurl(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusForbidden)
		}
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Method, " ", r.URL.RequestURI(), " ", r.Header.Get("Authorization"), " ", r.Header.Get("Content-Type"), " ", string(body), err)
	}))
	defer server.Close()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, text, 0o600); err != nil {
		t.Fatal(err)
	}
	call := func(method, path string, more ...string) (string, error) {
		var out strings.Builder
		args := []string{
			"curl", "--silent", "--show-error", "--fail-with-body", "--max-time", "15", "--cacert", authority,
			"--header", "Authorization: Bearer x", "--request", method, server.URL + path,
		}
		err := run(t.Context(), &out, append(args, more...))
		return out.String(), err
	}
	if got, err := call("GET", "/pods?pretty=true"); err != nil || got != "GET /pods?pretty=true Bearer x  <nil>" {
		t.Errorf("%q, %v", got, err)
	}
	got, err := call("PATCH", "/x", "--header", "Content-Type: application/merge-patch+json", "--data", `{"a": "b"}`)
	if err != nil || got != `PATCH /x Bearer x application/merge-patch+json {"a": "b"}<nil>` {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := call("GET", "/refused"); err == nil || !strings.HasPrefix(got, "GET /refused") {
		t.Errorf("a refusal: %q, %v", got, err)
	}
	if err := os.WriteFile(authority, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := call("GET", "/pods"); err == nil || got != "" {
		t.Errorf("an unknown authority: %q, %v", got, err)
	}
}
