package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// residentMiB returns the memory of the plugin that is not of its files.
func (n *node) residentMiB() int {
	n.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nRssAnon:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		n.t.Fatalf("no RssAnon in %s: %v", status, err)
	}
	return kib >> 10
}

// largeObjects makes ConfigMaps of nearly 1 MB that have a small key too, and returns their names.
func (n *node) largeObjects(count int) (names []string) {
	n.t.Helper()
	for i := range count {
		names = append(names, fmt.Sprintf("large-%d", i))
		n.configMap(names[i], map[string]string{"small": "1", "large": n.canary() + strings.Repeat("x", mostBytes-200)})
	}
	return names
}

// smallKeys returns the attributes of a volume that shows the small key of each object.
func smallKeys(names []string) map[string]string {
	var sources strings.Builder
	for _, name := range names {
		fmt.Fprintf(&sources, "- configMap: {name: %s, items: [{key: small, path: %s}]}\n", name, name)
	}
	return map[string]string{"sources": sources.String()}
}

// TestMemoryOfLargeObjects: fifty objects of 900 KiB take little more than that, also while they are read.
func TestMemoryOfLargeObjects(t *testing.T) {
	const objects, size = 50, 900 << 10
	binary, err := shared.plain() // its memory is that of a release
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: shared.kubeconfig, Args: []string{"--max-cached-size=1Gi"}})
	var names []string
	for i := range objects {
		names = append(names, fmt.Sprintf("large-%d", i))
		n.configMap(names[i], map[string]string{"small": "1", "large": n.canary() + strings.Repeat("x", size)})
	}
	before := n.residentMiB()
	v := n.volume(smallKeys(names))
	n.mustPublish(v)
	after := n.residentMiB()
	t.Logf("%d MiB before, %d MiB with %d objects of %d KiB", before, after, objects, size>>10)
	if most := before + 3*objects*size>>20; after > most {
		t.Errorf("the plugin takes %d MiB, want at most %d", after, most)
	}
	n.mustUnpublish(v)
}

// TestCachedSizeLimit fills the cache. A publish that needs another object is refused, and leaves nothing. What is
// mounted goes on, also after a restart with a bound far below it.
func TestCachedSizeLimit(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--max-cached-size=10Mi", "--http-address=127.0.0.1:0")
	const fit = 9
	names := n.largeObjects(fit + 1)
	var volumes []*harness.Volume
	for _, name := range names[:fit] {
		v := n.volume(smallKeys([]string{name}))
		n.mustPublish(v)
		volumes = append(volumes, v)
	}
	refused := n.volume(smallKeys(names[fit:]))
	size := 512 + 2*96 + len("small1large") + len(n.canary()) + mostBytes - 200
	text := fmt.Sprintf(`ConfigMap "%s/%s" takes %d bytes of memory, the node's other objects %d, together more than %d (--max-cached-size)`,
		n.namespace, names[fit], size, fit*size, 10<<20)
	wantStatus(t, n.Publish(t.Context(), refused), codes.ResourceExhausted, text)
	n.hasEvent(refused, "VolumeUpdateFailed", text)
	n.wantMounts(fit)
	n.mustPublish(n.volume(smallKeys(names[:1])))
	n.mustUnpublish(volumes[fit-1])
	n.mustPublish(refused)

	n.restartWith("--max-cached-size=2Mi")
	value := n.canary()
	n.configMap(names[0], map[string]string{"small": value, "large": strings.Repeat("x", mostBytes-200)})
	n.arrives(volumes[0], names[0], value, soon)
	n.hasCondition(volumes[0], "")
	text = fmt.Sprintf("together more than %d (an eighth of --max-cached-size)", 2<<20/8)
	wantStatus(t, n.Publish(t.Context(), n.volume(smallKeys(names[:1]))), codes.ResourceExhausted, text)
}
