package integration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// warmUp publishes and unpublishes one volume, so that what is made once and kept,
// such as the connection to the API server, is there.
func (n *node) warmUp() {
	n.t.Helper()
	n.configMap("warm", map[string]string{"key": n.canary()})
	before := watches(n.t.Context(), n.t, "configmaps")
	v := n.short("warm")
	n.mustPublish(v)
	n.mustUnpublish(v)
	wantWatches(n.t, "configmaps", before)
}

// churn runs the life of many volumes at once over a few objects of either kind.
func (n *node) churn(volumes, objects int) {
	n.t.Helper()
	final := make([]string, objects)
	for i := range objects {
		n.configMap(fmt.Sprint("cm-", i), map[string]string{"c": n.canary()})
		n.secret(fmt.Sprint("s-", i), map[string]string{"s": n.canary()})
		final[i] = n.canary()
	}
	published := make(chan *harness.Volume, volumes)
	errs := make(chan error, 2*volumes)
	var calls sync.WaitGroup
	for i := range volumes {
		v := n.volume(map[string]string{"sources": fmt.Sprintf("- configMap: {name: cm-%d}\n- secret: {name: s-%d}\n", i%objects, (i+1)%objects)})
		v.Pod = fmt.Sprint("pod-", i%objects)
		calls.Go(func() {
			errs <- n.Publish(n.t.Context(), v)
			published <- v
		})
	}
	for i, value := range final { // while the publishes run
		n.configMap(fmt.Sprint("cm-", i), map[string]string{"c": value})
	}
	calls.Wait()
	close(published)
	n.wantMounts(volumes)
	for v := range published {
		var i int
		if _, err := fmt.Sscanf(v.Pod, "pod-%d", &i); err != nil {
			n.t.Fatal(err)
		}
		n.arrives(v, "c", final[i], soon)
		calls.Go(func() { errs <- n.Unpublish(n.t.Context(), v) })
	}
	calls.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			n.t.Error(err)
		}
	}
}

// descriptors counts the plugin's open descriptors by what they are.
func (n *node) descriptors() map[string]int {
	n.t.Helper()
	open, err := n.Descriptors()
	if err != nil {
		n.t.Fatal(err)
	}
	count := make(map[string]int)
	for _, d := range open {
		count[d]++
	}
	return count
}

// idleGoroutines returns those of another plugin that has served one volume.
func idleGoroutines(t *testing.T) map[string]int {
	t.Helper()
	idle := newNode(t)
	idle.warmUp()
	return idle.goroutines()
}

// goroutines ends the plugin and counts the goroutines that it had, by the function
// that started them.
func (n *node) goroutines() map[string]int {
	n.t.Helper()
	count, err := n.Quit(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return count
}

func wantNoMore(t *testing.T, before, after map[string]int) {
	t.Helper()
	var errs []error
	for _, f := range slices.Sorted(maps.Keys(after)) {
		if after[f] > before[f] {
			errs = append(errs, fmt.Errorf("%d goroutines of %s, an idle plugin has %d", after[f], f, before[f]))
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	t.Logf("goroutines by what started them: %v", after)
}
