package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// stalledObjects is how many objects a node of TestStalledServer watches.
	stalledObjects = 50
	// harmlessStall drops no watch, as the answer to a ping has longer than that.
	harmlessStall = 8 * time.Second
)

// TestStalledServer has an API server stall, which must not drop the watches of all nodes at
// once, and connections die without a word, which must not go unnoticed for long.
func TestStalledServer(t *testing.T) {
	t.Parallel()
	n := newStalledNode(t)
	dropped, current := n.stalls(harmlessStall)
	t.Logf("stalls for %s: %d of %d watches dropped, current after %.1f s", harmlessStall, dropped, stalledObjects, current.Seconds())
	if dropped > 0 {
		t.Errorf("%d watches were dropped in a stall of %s", dropped, harmlessStall)
	}
	for range harness.Scaled(1, 3) {
		dropped, current := n.dies()
		t.Logf("dead connections: %d of %d watches dropped, current after %.1f s", dropped, stalledObjects, current.Seconds())
	}
}

// stalledNode is a node behind a proxy, with one volume of many objects.
type stalledNode struct {
	*proxied
	volume *harness.Volume
}

func newStalledNode(t *testing.T) *stalledNode {
	t.Helper()
	n := &stalledNode{proxied: newProxied(t, faultproxy.Options{})}
	var sources []string
	for i := range stalledObjects {
		n.configMap(fmt.Sprint("o-", i), map[string]string{fmt.Sprint("key-", i): n.canary()})
		sources = append(sources, fmt.Sprintf("{configMap: {name: o-%d}}", i))
	}
	n.volume = n.node.volume(map[string]string{"sources": "[" + strings.Join(sources, ", ") + "]"})
	n.publishes(n.volume, time.Minute)
	n.awaitWatches()
	return n
}

// stalls has the API server neither send nor receive for a while in which an object changes.
// It returns how many watches that drops, and how long after it the change shows.
func (n *stalledNode) stalls(lasts time.Duration) (dropped int, current time.Duration) {
	n.t.Helper()
	n.forgetRequests()
	begin := time.Now()
	n.inject(faultproxy.Partition)
	value := n.change()
	during(n.t, lasts-time.Since(begin), func() {})
	n.heal()
	current = n.arrives(n.volume, "key-0", value, 2*time.Minute)
	return n.awaitWatches(), current
}

// dies has all connections die without a word, and an object change. It returns how many
// watches that drops, and how long it takes until the change shows.
func (n *stalledNode) dies() (dropped int, current time.Duration) {
	n.t.Helper()
	n.forgetRequests()
	n.inject(faultproxy.HalfOpen)
	n.heal() // what is dead remains so
	current = n.arrives(n.volume, "key-0", n.change(), 2*time.Minute)
	return n.awaitWatches(), current
}

// change writes another value to the first object.
func (n *stalledNode) change() (value string) {
	n.t.Helper()
	value = n.canary()
	n.configMap("o-0", map[string]string{"key-0": value})
	return value
}

// awaitWatches waits until every object is watched again and no request comes any more. It
// returns how many objects were asked for since forgetRequests.
func (n *stalledNode) awaitWatches() (opened int) {
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
