package fleet

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/harness"
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
	version := w.change()
	v, r := w.converged()
	if r.status != 0 || !v.Converged || v.Nodes != plugins || v.Volumes != plugins || v.Showing != plugins || v.Current.ResourceVersion != version {
		t.Errorf("got %+v, want %d of each, at version %s", v, plugins, version)
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
