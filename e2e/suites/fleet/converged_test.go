package fleet

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

func (w *world) expect(v fleet.Result, r result, want ...string) {
	w.t.Helper()
	if got := laggards(v); !slices.Equal(got, want) || v.Converged != (len(want) == 0) || (r.status == 0) != v.Converged {
		w.t.Errorf("converged: %v, status %d, laggards %q, want %q\n%s%s", v.Converged, r.status, got, want, r.stdout, r.stderr)
	}
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
			w.expect(v, r, want...)
			return v, timeout
		}
	}
}

// TestConvergedWatches prints each change of the answer, and ends with the caller.
func TestConvergedWatches(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live-1", nil)
	out := &lines{}
	cmd := exec.CommandContext(t.Context(), shared.race, "converged", "secret/db", "-n", w.namespace, "--watch", "--kubeconfig="+shared.caller)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitLine := func(want string) {
		t.Helper()
		harness.Eventually(t, soon, func() error {
			if text := out.String(); !strings.Contains(text, want) {
				return fmt.Errorf("no %q in\n%s", want, text)
			}
			return nil
		})
	}
	awaitLine("Converged: yes.")
	w.appPod("lost", "node-9", corev1.PodRunning)
	awaitLine("Converged: no.")
	awaitLine("NoPlugin")
	version := w.change()
	awaitLine("has version " + version)
	if err := shared.DeletePod(t.Context(), w.namespace, "lost"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, soon, func() error {
		if text := out.String(); strings.Count(text, "Converged: yes.") != 2 {
			return fmt.Errorf("not yes again:\n%s", text)
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the last answer was yes: %v\n%s", err, out)
	}
}

// TestNoNodeIsLeftOut has each node be one of which it isn't known what it shows.
func TestNoNodeIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live", nil)

	// No kubelet, nothing on the plugin's port, and a server of another kind there.
	cutOff := kubelet.NodeAt("cut-off", closedPort(t))
	cutOff.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.register(cutOff)
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
		text := w.run(shared.race, append(args, "--plugin-timeout=2s")...)
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

// TestAPodOnNoNode: who may create pods may name a node that does not exist, and keeps nobody from a yes.
func TestAPodOnNoNode(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live", nil)
	w.appPod("stray", "no-such-node", corev1.PodPending)
	v, r := w.converged("--timeout=10s")
	w.expect(v, r)
	if len(v.NotPublished) != 1 || v.NotPublished[0].Name != "stray" || v.NotPublished[0].Node != "no-such-node" || v.Nodes != 1 {
		t.Errorf("not published: %+v; %d nodes", v.NotPublished, v.Nodes)
	}
	if r := w.run(shared.race, "status"); r.status != 0 {
		t.Errorf("status %d: %s%s", r.status, r.stdout, r.stderr)
	}

	// A kubelet that has accepted it may have started it since, and be cut off.
	accepted := w.appPod("accepted", "lost", corev1.PodPending)
	now := metav1.Now()
	accepted.Status.StartTime = &now
	w.putPod(accepted)
	v, r = w.converged("--timeout=1s")
	w.expect(v, r, "lost  NoPlugin")
}

// TestNothingShowsIt: an object that no volume names has not converged. A wrong namespace is the usual cause.
func TestNothingShowsIt(t *testing.T) {
	w := newWorld(t)
	w.node("node-1").publish("live", map[string]string{"secret": "elsewhere", "optional": "true"})
	v, r := w.converged()
	if v.Converged || v.Volumes != 0 || r.status != 3 || !strings.Contains(r.stderr, "no refvol volume shows secret/db in namespace "+w.namespace) {
		t.Errorf("converged %v, status %d: %s%s", v.Converged, r.status, r.stdout, r.stderr)
	}
	text := w.run(shared.race, "converged", "secret/db", "-n", w.namespace)
	if text.status != 3 || !strings.Contains(text.stdout, "Converged: no.") || !strings.Contains(text.stdout, "No refvol volume shows the object.") {
		t.Errorf("status %d: %s%s", text.status, text.stdout, text.stderr)
	}
	v, r = w.converged("--allow-none")
	w.expect(v, r)
	missing := w.run(shared.race, "converged", "secret/missing", "-n", w.namespace, "--allow-none")
	if missing.status != 1 || !strings.Contains(missing.stderr, "does not exist") {
		t.Errorf("an object that does not exist: status %d: %s%s", missing.status, missing.stdout, missing.stderr)
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
