package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestUninstallCheck: each pod is a line, and the refusal ends with what to do next.
func TestUninstallCheck(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	t.Setenv("HOME", t.TempDir())
	const volumes = `"volumes": [{"name": "v", "csi": {"driver": "csi.refvol.dev"}}]`
	const pods = `{"metadata": {"namespace": "shop", "name": "runs"}, "spec": {"nodeName": "n", ` + volumes + `}, "status": {"phase": "Running"}},
		{"metadata": {"namespace": "shop", "name": "waits"}, "spec": {` + volumes + `}},
		{"metadata": {"namespace": "shop", "name": "ended"}, "spec": {"nodeName": "n", ` + volumes + `}, "status": {"phase": "Succeeded"}}`
	for items, want := range map[string]struct {
		status       int
		stdout, says string
	}{
		"": {},
		pods: {
			no, "pod shop/runs on node n\npod shop/waits on no node yet\npod shop/ended on node n, which has ended, and may have mounts there\n",
			"uninstall-check: pods that use the driver csi.refvol.dev: 3: delete them first, because without the plugin they stay in Terminating; " +
				"switch live namespaces off before (docs/live-namespaces.md); helm rollback refvol",
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "PodList", "items": [%s]}`, items)
		}))
		stdout, _, err := runCommand(t, "uninstall-check", "--server="+server.URL, "--next-step=helm rollback refvol")
		server.Close()
		if exitStatus(err) != want.status || stdout != want.stdout || message(err) != want.says {
			t.Errorf("status %d, %v, printed\n%s", exitStatus(err), err, stdout)
		}
	}
}
