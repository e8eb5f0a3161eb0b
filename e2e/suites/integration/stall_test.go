package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// stalledObjects is how many objects TestStalledServer watches.
const stalledObjects = 50

// TestStalledServer has an API server stall, which must not drop the watches of all nodes at
// once, and connections die without a word, which must not go unnoticed for long.
func TestStalledServer(t *testing.T) {
	t.Parallel()
	n := newProxied(t, faultproxy.Options{})
	var sources []string
	for i := range stalledObjects {
		n.configMap(fmt.Sprint("o-", i), map[string]string{fmt.Sprint("key-", i): n.canary()})
		sources = append(sources, fmt.Sprintf("{configMap: {name: o-%d}}", i))
	}
	v := n.volume(map[string]string{"sources": "[" + strings.Join(sources, ", ") + "]"})
	n.publishes(v, time.Minute)
	n.awaitWatches()

	// An answer to a ping has longer than the stall, in which an object changes. What dies remains dead after the heal.
	const harmless = 8 * time.Second
	for i := range harness.Scaled(2, 4) {
		n.forgetRequests()
		if i == 0 {
			n.inject(faultproxy.Partition)
			during(t, harmless, func() {})
		} else {
			n.inject(faultproxy.HalfOpen)
		}
		value := n.canary()
		n.configMap("o-0", map[string]string{"key-0": value})
		n.heal()
		current := n.arrives(v, "key-0", value, 2*time.Minute)
		dropped := n.awaitWatches()
		t.Logf("stall or death %d: %d of %d watches dropped, current after %.1f s", i, dropped, stalledObjects, current.Seconds())
		if i == 0 && dropped > 0 {
			t.Errorf("%d watches were dropped in a stall of %s", dropped, harmless)
		}
	}
}

// awaitWatches waits until every object is watched again and no request comes any more. It
// returns how many objects were asked for since forgetRequests.
func (n *proxied) awaitWatches() (opened int) {
	n.t.Helper()
	seen := -1
	harness.Eventually(n.t, 2*time.Minute, func() error {
		objects := map[faultproxy.Object]bool{}
		for _, r := range n.requests() {
			if r.Verb == "WATCH" {
				objects[r.Object] = true
			}
		}
		opened = len(objects)
		before := seen
		if seen = len(n.requests()); before != seen {
			during(n.t, 2*time.Second, func() {})
			return fmt.Errorf("%d requests have come, and more may", seen)
		}
		if open := len(n.proxy.Watches()); open != stalledObjects {
			return fmt.Errorf("%d watches are open, want %d", open, stalledObjects)
		}
		return nil
	})
	return opened
}
