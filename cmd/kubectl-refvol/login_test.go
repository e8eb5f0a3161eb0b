package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// apiServer answers every list with one object, node-1.
func apiServer(t *testing.T) (url string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "items": [{"metadata": {"name": "node-1"}}]}`)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestCompletion: kubectl completes names, from the API server and from the kubeconfig.
func TestCompletion(t *testing.T) {
	url := apiServer(t)
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

// TestNoRequestTimeout: 0 means no limit, as with kubectl, also in a pod without a kubeconfig.
func TestNoRequestTimeout(t *testing.T) {
	for set, want := range map[string]time.Duration{"": requestTimeout, "0": 0, "0s": 0, "7": 7 * time.Second, "1m": time.Minute} {
		flags, timeout := newConfigFlags()
		if set != "" {
			must(t, timeout.Set(set))
		}
		*flags.APIServer = "http://127.0.0.1:1"
		config, err := flags.ToRESTConfig()
		if err != nil || config.Timeout != want {
			t.Errorf("--request-timeout=%s: %v, %v, want %s", set, config.Timeout, err, want)
		}
	}
}

// soon is much more than a command needs to notice that it must end.
const soon = 10 * time.Second

// silentServer never answers. It returns the flag --server for it, and a channel that receives each request.
func silentServer(t *testing.T) (flag string, asked <-chan struct{}) {
	t.Helper()
	requests := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		requests <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return "--server=" + server.URL, requests
}

// TestSilentServer: an interruption ends each command at once, and --timeout ends it in time, although the API server never answers.
func TestSilentServer(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("HOME", t.TempDir())
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, envFrom: [{secretRef: {name: db}}]}]}\n"
	writeFile(t, manifest, text)
	for _, line := range []string{
		"converged secrets,configmaps -l app=web --timeout=300ms",
		"converged secret/db --timeout=300ms",
		"converged deployments -l app=web --timeout=300ms",
		"converged deployment/web --timeout=300ms",
		"converged secret/db --timeout=0",
		"converged secrets -l app=web",
		"converged secret/db --watch",
		"rollout configmap/app --timeout=300ms",
		"rollout configmap/app",
		"rollout status",
		"rollout pause configmap/app --timeout=300ms",
		"rollout abort configmap/app",
		"rollout resume configmap/app",
		"status",
		"status -w",
		"uninstall-check",
		"check --live -f " + manifest,
		"check --label=restart",
	} {
		t.Run(line, func(t *testing.T) {
			server, asked := silentServer(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			args := append(strings.Fields(line), server, "-n=shop", "--request-timeout=0")
			ended := make(chan error, 1)
			var out bytes.Buffer
			go func() { ended <- run(ctx, newRootCommand(), args, &out, &out) }()
			if !strings.Contains(line, "--timeout=300ms") {
				select {
				case <-asked:
				case err := <-ended:
					ended <- err
				case <-time.After(soon):
					t.Fatal("it asks for nothing")
				}
				interrupt()
			}
			select {
			case err := <-ended:
				if exitStatus(err) != unknown {
					t.Errorf("it ended with %v\n%s", err, &out)
				}
			case <-time.After(soon):
				t.Error("it does not end")
			}
		})
	}
}
