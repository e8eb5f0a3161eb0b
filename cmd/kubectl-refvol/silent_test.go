package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// soon is much more than a command needs to notice that it must end.
const soon = 10 * time.Second

// silentServer accepts connections and never answers. It returns the flag --server for it, and a channel that receives each connection.
func silentServer(t *testing.T) (flag string, accepted <-chan net.Conn) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 100)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns <- conn
		}
	}()
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-over
		close(conns)
		for conn := range conns {
			_ = conn.Close()
		}
	})
	return "--server=http://" + listener.Addr().String(), conns
}

// TestSilentServer: an interruption ends each command at once, and --timeout ends it in time, although the API server never answers.
func TestSilentServer(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("HOME", t.TempDir())
	manifest := filepath.Join(t.TempDir(), "pod.yaml")
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, envFrom: [{secretRef: {name: db}}]}]}\n"
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
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
			server, accepted := silentServer(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			args := append(strings.Fields(line), server, "-n=shop", "--request-timeout=0")
			ended := make(chan error, 1)
			var out bytes.Buffer
			go func() { ended <- run(ctx, newRootCommand(), args, &out, &out) }()
			if !strings.Contains(line, "--timeout=300ms") {
				select {
				case conn := <-accepted:
					defer conn.Close()
				case err := <-ended:
					ended <- err
				case <-time.After(soon):
					t.Fatal("it connects to nothing")
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
