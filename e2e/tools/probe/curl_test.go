package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// Like curl, it repeats the request if the server is busy, and writes all answers. It doesn't if the server refuses.
func TestCurlAsksAgain(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []int
		asked   int64
		fails   bool
	}{
		{"busy once", []int{http.StatusTooManyRequests, http.StatusOK}, 2, false},
		{"busy for long", []int{http.StatusServiceUnavailable, http.StatusServiceUnavailable, http.StatusOK}, 2, true},
		{"refused", []int{http.StatusForbidden, http.StatusOK}, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.answers[asked.Add(1)-1])
				_, _ = io.WriteString(w, "answer\n")
			}))
			defer server.Close()
			authority := filepath.Join(t.TempDir(), "ca.crt")
			certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			if err := os.WriteFile(authority, certificate, 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err := run(t.Context(), &out, []string{"curl", "--retry", "1", "--cacert", authority, server.URL})
			if (err != nil) != c.fails || asked.Load() != c.asked || out.String() != strings.Repeat("answer\n", int(c.asked)) {
				t.Errorf("%v after %d requests, want %d; it wrote %q", err, asked.Load(), c.asked, out.String())
			}
		})
	}
}
