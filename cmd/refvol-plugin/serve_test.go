package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAServeThatEndsAtOnceUnlocks: its context ends before it has the lock, or right after.
func TestAServeThatEndsAtOnceUnlocks(t *testing.T) {
	dir := t.TempDir()
	opts := newServeOptions()
	opts.nodeName, opts.kubeletDir, opts.endpoint = "node-1", dir, "unix://"+filepath.Join(dir, "csi.sock")
	opts.httpAddress, opts.statusAddress, opts.kubeconfig = "127.0.0.1:0", "", filepath.Join(dir, "kubeconfig")
	writeFile(t, opts.kubeconfig, `{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
		"contexts": [{"name": "c", "context": {"cluster": "c"}}]}`)
	if err := opts.validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := serve(ctx, opts); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(filepath.Join(dir, "csi.sock.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("it is still locked: %v", err)
	}
}
