package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

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
