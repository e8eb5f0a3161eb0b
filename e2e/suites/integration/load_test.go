package integration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
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
