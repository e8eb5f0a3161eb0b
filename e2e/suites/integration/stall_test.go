package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/e2e/tools/faultproxy"
	"github.com/refvol/refvol/e2e/tools/gobuild"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// stalledObjects is how many objects a node of TestStalledServer watches.
	stalledObjects = 50
	// harmlessStall drops no watch, as the answer to a ping has longer than that.
	harmlessStall = 8 * time.Second
)

// pings is how a client finds out that a connection is dead: by a ping after a time without a
// frame, and a time for the answer.
type pings struct{ after, timeout time.Duration }

func (p pings) String() string {
	return fmt.Sprintf("%.0f+%.0f", p.after.Seconds(), p.timeout.Seconds())
}

// shippedPings are the plugin's own.
func shippedPings() pings { return pings{pingAfter, pingTimeout} }

// TestStalledServer has an API server stall, which must not drop the watches of all nodes at
// once, and connections die without a word, which must not go unnoticed for long. The long
// form prints how other settings do.
func TestStalledServer(t *testing.T) {
	t.Parallel()
	const s = time.Second
	others := []pings{shippedPings(), {5 * s, 10 * s}, {30 * s, 15 * s}}
	for _, p := range harness.Scaled([]pings{shippedPings()}, others) {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			n := newStalledNode(t, p)
			for _, lasts := range harness.Scaled([]time.Duration{harmlessStall}, []time.Duration{harmlessStall, 12 * s, 20 * s, 40 * s}) {
				dropped, current := n.stalls(lasts)
				t.Logf("| %s | stalls for %s | %d of %d | %.1f s |", p, lasts, dropped, stalledObjects, current.Seconds())
				if p == shippedPings() && lasts == harmlessStall && dropped > 0 {
					t.Errorf("%d watches were dropped in a stall of %s", dropped, lasts)
				}
			}
			for range harness.Scaled(1, 3) {
				dropped, current := n.dies()
				t.Logf("| %s | dead connections | %d of %d | %.1f s |", p, dropped, stalledObjects, current.Seconds())
			}
		})
	}
}

// stalledNode is a node behind a proxy, with one volume of many objects.
type stalledNode struct {
	*proxied
	volume *harness.Volume
}

// newStalledNode starts a plugin with other pings than its own.
func newStalledNode(t *testing.T, p pings) *stalledNode {
	t.Helper()
	var options harness.PluginOptions
	if p != shippedPings() {
		options.Binary = pluginWith(t, p)
	}
	n := &stalledNode{proxied: newProxiedWith(t, shared.kubeconfig, faultproxy.Options{}, options)}
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

// pluginWith builds the plugin with other pings than its own.
func pluginWith(t *testing.T, p pings) (binary string) {
	t.Helper()
	repo, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	source, other := filepath.Join(repo, "cmd", "refvol-plugin", "client.go"), filepath.Join(dir, "client.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]time.Duration{"pingAfter": p.after, "pingTimeout": p.timeout} {
		constant := regexp.MustCompile(`(?m)^(\t` + name + `\s+=) .*$`)
		if len(constant.FindAll(text, -1)) != 1 {
			t.Fatalf("%s does not define %s as expected", source, name)
		}
		text = constant.ReplaceAll(text, fmt.Appendf(nil, "$1 %d * time.Second", int(value.Seconds())))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{source: other}})
	if err != nil {
		t.Fatal(err)
	}
	o := gobuild.Options{Dir: repo, Package: "./cmd/refvol-plugin", Out: filepath.Join(dir, "refvol-plugin"), Tags: "grpcnotrace", Overlay: filepath.Join(dir, "overlay.json")}
	for path, content := range map[string][]byte{other: text, o.Overlay: overlay} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := gobuild.Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return o.Out
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
