package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// apiServer answers every list with one object of a name, and returns the headers of requests.
func apiServer(t *testing.T, name string) (url string, seen chan http.Header) {
	t.Helper()
	seen = make(chan http.Header, 100)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": [{"metadata": {"name": %q}}]}`, name)
	}))
	t.Cleanup(server.Close)
	return server.URL, seen
}

// TestExecPlugin: a login by an exec plugin works here too.
func TestExecPlugin(t *testing.T) {
	url, seen := apiServer(t, "db")
	dir := t.TempDir()
	program := filepath.Join(dir, "login")
	const script = "#!/bin/sh\necho '{\"apiVersion\": \"client.authentication.k8s.io/v1\", \"kind\": \"ExecCredential\", \"status\": {\"token\": \"of-the-program\"}}'\n"
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	writeFile(t, kubeconfig, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}], "users": [{"name": "u", "user": {"exec":
		{"apiVersion": "client.authentication.k8s.io/v1", "command": %q, "interactiveMode": "Never"}}}]}`, url, program))
	out, _, err := runCommand(t, "__complete", "converged", "--kubeconfig", kubeconfig, "--as=somebody", "secret/")
	if err != nil || !strings.HasPrefix(out, "secret/db\n") {
		t.Fatalf("%v, %q", err, out)
	}
	header := <-seen
	if got := header.Get("Authorization"); got != "Bearer of-the-program" || header.Get("Impersonate-User") != "somebody" {
		t.Errorf("got %q as %q", got, header.Get("Impersonate-User"))
	}
}

// TestCompletion: kubectl completes names, from the API server and from the kubeconfig.
func TestCompletion(t *testing.T) {
	url, _ := apiServer(t, "node-1")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	writeFile(t, kubeconfig, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "blue", "clusters": [{"name": "c", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"contexts": [{"name": "blue", "context": {"cluster": "c"}}, {"name": "black", "context": {"cluster": "c"}}, {"name": "red", "context": {"cluster": "c"}}]}`, url))
	for _, test := range []struct{ args, want []string }{
		{[]string{"stat"}, []string{"status\tList the volumes of all nodes, the worst first"}},
		{[]string{"status", "--node", "no"}, []string{"node-1"}},
		{[]string{"status", "-n", ""}, []string{"node-1"}},
		{[]string{"status", "--context", "bl"}, []string{"black", "blue"}},
		{[]string{"converged", "s"}, []string{"secret/"}},
		{[]string{"converged", "configmap/n"}, []string{"configmap/node-1"}},
		{[]string{"converged", "pod/n"}, nil},
	} {
		out, _, err := runCommand(t, append([]string{"__complete", "--kubeconfig", kubeconfig}, test.args...)...)
		got := strings.Split(strings.TrimSpace(out), "\n")
		if got = got[:len(got)-1]; err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%q: %v, got %q, want %q", test.args, err, got, test.want)
		}
	}
}

// TestRequestTimeout: --request-timeout limits a request.
func TestRequestTimeout(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	defer close(release)
	t.Setenv("KUBECONFIG", "/does/not/exist")
	_, _, err := runCommand(t, "status", "--server", server.URL, "--request-timeout=100ms")
	if err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) && !strings.Contains(err.Error(), "Client.Timeout exceeded") {
		t.Errorf("got %v", err)
	}
}

// TestNoRequestTimeout: 0 means no limit, as with kubectl, also in a pod without a kubeconfig.
func TestNoRequestTimeout(t *testing.T) {
	for set, want := range map[string]time.Duration{"": requestTimeout, "0": 0, "0s": 0, "7": 7 * time.Second, "1m": time.Minute} {
		flags, timeout := newConfigFlags()
		if set != "" {
			if err := timeout.Set(set); err != nil {
				t.Fatal(err)
			}
		}
		*flags.APIServer = "http://127.0.0.1:1"
		config, err := flags.ToRESTConfig()
		if err != nil || config.Timeout != want {
			t.Errorf("--request-timeout=%s: %v, %v, want %s", set, config.Timeout, err, want)
		}
	}
}
