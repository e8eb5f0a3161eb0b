package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/kubelet"
	"github.com/refvol/refvol/internal/leak"
)

// bound is three times what the answer of 200 plugins is to take, for a machine that does other things too.
const bound = 30 * time.Second

// TestManyPlugins prints how long 200 plugins take to answer; the short form has few.
func TestManyPlugins(t *testing.T) {
	const startedAtOnce = 4
	plugins := harness.Scaled(6, 200)
	w := newWorld(t)
	began := time.Now()
	names := make(chan string)
	var starters sync.WaitGroup
	for range startedAtOnce {
		starters.Go(func() {
			for name := range names {
				w.node(name).publish("app-on-" + name)
			}
		})
	}
	for i := range plugins {
		names <- fmt.Sprintf("node-%03d", i)
	}
	close(names)
	starters.Wait()
	if t.Failed() {
		return
	}
	t.Logf("%d plugins started in %s", plugins, time.Since(began).Round(time.Second))
	changed := must(shared.Client().CoreV1().Secrets(w.namespace).Patch(t.Context(), "db", types.MergePatchType,
		[]byte(`{"stringData":{"password":"`+leak.Value+` again"}}`), metav1.PatchOptions{}))(t)
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Nodes != plugins || v.Volumes != plugins || v.Showing != plugins || v.Current.ResourceVersion != changed.ResourceVersion {
		t.Errorf("got %+v, want %d of each, at version %s", v, plugins, changed.ResourceVersion)
	}
	t.Logf("converged over %d plugins: %s", plugins, r.took.Round(time.Millisecond))
	if r.took > bound {
		t.Errorf("converged took %s, want at most %s", r.took, bound)
	}
	status := w.run("status")
	t.Logf("status of %d plugins: %s", plugins, status.took.Round(time.Millisecond))
	// No kubelet has registered the plugins.
	notReady := fmt.Sprintf("Error: status: plugins that are not ready: %d\n", plugins)
	last := fmt.Sprintf("\n%d volumes on %d nodes, 0 abnormal\n", plugins, plugins)
	if status.status != 1 || status.stderr != notReady || !strings.HasSuffix(status.stdout, last) {
		t.Errorf("status %d: %s\n%s", status.status, status.stderr, status.stdout)
	}
}

// TestNoNodeIsLeftOut: a node is named of which it isn't known what it shows: it has no kubelet, nothing on the plugin's port, or no plugin.
func TestNoNodeIsLeftOut(t *testing.T) {
	w := newWorld(t)
	w.node("good").publish("live")
	cutOff := kubelet.NodeAt("cut-off", 1) // nothing listens there
	cutOff.Status.Conditions[0].Status = corev1.ConditionUnknown
	w.register(cutOff)
	w.pluginPod("cut-off", "")
	w.registerHere("refused")
	w.pluginPod("refused", "")
	w.registerHere("registered")
	for _, args := range [][]string{{"converged", "secret/db", "-n", w.namespace, fmt.Sprint("--timeout=", bound)}, {"status"}} {
		r := w.run(append(args, "--plugin-timeout=2s")...)
		for _, name := range []string{"cut-off", "refused", "registered"} {
			if r.status != 1 || !strings.Contains(r.stdout, name) {
				t.Errorf("%q: status %d, want 1, and node %s in\n%s%s", args, r.status, name, r.stdout, r.stderr)
			}
		}
	}
}
