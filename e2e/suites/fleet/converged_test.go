package fleet

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/kubelet"
	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// laggards returns where and why, a line each.
func laggards(v fleet.Result) []string {
	var lines []string
	for _, l := range v.Laggards {
		pod := ""
		if l.Pod != nil {
			pod = l.Pod.Name
		}
		lines = append(lines, fmt.Sprint(l.Node, " ", pod, " ", l.Reason))
	}
	slices.Sort(lines)
	return lines
}

// patiently runs converged with more and more time, until the answer is the one that is wanted: what answers
// at once takes seconds on a loaded machine. It returns the time of the last try, of which a plugin has a
// quarter.
func (w *world) patiently(want ...string) (fleet.Result, time.Duration) {
	w.t.Helper()
	for timeout := 2 * time.Second; ; timeout *= 3 {
		v, r := w.converged(fmt.Sprint("--timeout=", timeout), fmt.Sprint("--plugin-timeout=", timeout/4))
		for i := range v.Laggards {
			// Of an answer without an end so much may have come that it is too much.
			if l := &v.Laggards[i]; l.Node == "endless" && l.Reason == fleet.OtherRelease {
				l.Reason = fleet.Unreachable
			}
		}
		if slices.Equal(laggards(v), want) || timeout > 30*time.Second {
			if got := laggards(v); !slices.Equal(got, want) || v.Converged || r.status == 0 {
				w.t.Errorf("converged: %v, status %d, laggards %q, want %q\n%s%s", v.Converged, r.status, got, want, r.stdout, r.stderr)
			}
			return v, timeout
		}
	}
}

// TestNoNodeIsLeftOut has each node be one of which it isn't known what it shows.
func TestNoNodeIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")

	// No kubelet, nothing on the plugin's port, and a server of another kind there.
	cutOff := kubelet.NodeAt("cut-off", closedPort(t))
	cutOff.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.register(cutOff, harness.DriverName)
	w.pluginPod("cut-off", "")
	w.registerHere("refused")
	w.pluginPod("refused", "")
	for name, answer := range map[string]string{
		"404":     "",
		"newer":   `{"apiVersion": "status.refvol.dev/v9", "kind": "PluginStatus"}`,
		"escapes": `{"apiVersion": "\u001b]0;owned\u0007\u001b[2J", "kind": "PluginStatus"}`,
		"other":   `{"apiVersion": "` + status.APIVersion + `", "kind": "PluginStatus", "driver": "` + harness.DriverName + `", "node": "good\u001b[2J"}`,
	} {
		w.registerHere(name)
		w.pluginPod(name, serve(t, func(rw http.ResponseWriter, r *http.Request) {
			if answer == "" {
				http.NotFound(rw, r)
				return
			}
			fmt.Fprint(rw, answer)
		}))
	}
	w.registerHere("endless")
	w.pluginPod("endless", serve(t, func(rw http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := rw.Write([]byte(strings.Repeat(" ", 1<<20))); err != nil {
				return
			}
		}
	}))

	// A plugin that is not ready, none at all where the driver is registered, none where a pod names it.
	w.registerHere("starting")
	pod := w.pluginPod("starting", "")
	pod.Status.Conditions, pod.Status.Phase = nil, corev1.PodPending
	w.putPod(pod)
	w.registerHere("registered")
	w.appPod("stranded", "no-plugin", corev1.PodRunning)

	// A pod whose volume its node's plugin doesn't know, and two that are yet to get one.
	w.appPod("unknown", "good", corev1.PodRunning)
	w.appPod("creating", "good", corev1.PodPending)
	w.appPod("unscheduled", "", corev1.PodPending)

	v, timeout := w.patiently(
		"404  OtherRelease", "cut-off  NodeNotReady", "endless  Unreachable", "escapes  OtherRelease", "good unknown NotReported",
		"newer  OtherRelease", "no-plugin  NoPlugin", "other  OtherPlugin", "refused  OtherRelease", "registered  NoPlugin",
		"starting  NotReady")
	var waiting []string
	for _, pod := range v.NotPublished {
		waiting = append(waiting, pod.Name)
	}
	if !slices.Equal(waiting, []string{"creating", "unscheduled"}) || v.Volumes != 1 || v.Showing != 1 {
		t.Errorf("not published: %q; %d of %d show it", waiting, v.Showing, v.Volumes)
	}

	for _, args := range [][]string{{"converged", "secret/db", "-n", w.namespace, fmt.Sprint("--timeout=", timeout)}, {"status"}, {"status", "-o", "wide"}, {"status", "-o", "yaml"}} {
		text := w.run(append(args, "--plugin-timeout=2s")...)
		if text.status != 1 {
			t.Errorf("%q: status %d, want 1", args, text.status)
		}
		for _, name := range []string{"404", "cut-off", "endless", "newer", "no-plugin", "other", "refused", "registered", "starting"} {
			if !strings.Contains(text.stdout, name) {
				t.Errorf("%q says nothing of node %s:\n%s", args, name, text.stdout)
			}
		}
		if i := strings.IndexFunc(text.stdout+text.stderr, func(c rune) bool { return c < ' ' && c != '\n' || c == 0x7f }); i >= 0 {
			t.Errorf("%q: a control character reaches the terminal: %q", args, text.stdout+text.stderr)
		}
	}
}

// TestAPodWithoutAPluginHoldsUpNobody: one that waits on a node without the plugin is listed apart.
func TestAPodWithoutAPluginHoldsUpNobody(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	w.registerWith("bare", "other.example.com")
	w.waitingPod("stranded", "bare")
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Nodes != 1 || len(v.WithoutPlugin) != 1 || v.WithoutPlugin[0].Name != "stranded" || v.WithoutPlugin[0].Node != "bare" {
		t.Errorf("status %d\n%s\n%s", r.status, r.stdout, r.stderr)
	}
}

// serve serves HTTP until the end of the test, and returns where.
func serve(t *testing.T, handler http.HandlerFunc) string {
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().String()
}

// closedPort returns a port on which nothing listens.
func closedPort(t *testing.T) int32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return int32(listener.Addr().(*net.TCPAddr).Port)
}
