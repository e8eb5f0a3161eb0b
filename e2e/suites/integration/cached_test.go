package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	rbacv1 "k8s.io/api/rbac/v1"

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

// TestEqualObjectsAreKeptOnce: pods of accounts of their own read the same objects, each by a watch of its
// own. The plugin keeps one copy of each. Before, each account took 16 MB: 24 pods took the plugin from 24 to 645 MB.
func TestEqualObjectsAreKeptOnce(t *testing.T) {
	const objects = 16
	binary, err := shared.plain() // its memory is that of a release
	if err != nil {
		t.Fatal(err)
	}
	n := newPodNodeWith(t, harness.PluginOptions{Binary: binary, Args: []string{"-v=2"}})
	names, pods := n.largeObjects(objects), harness.Scaled(16, 24)
	var accounts []rbacv1.Subject
	var volumes []*harness.Volume
	for i := range pods {
		v := n.volume(smallKeys(names))
		v.ServiceAccount = fmt.Sprintf("account-%d", i)
		accounts = append(accounts, account(n.namespace, v.ServiceAccount))
		volumes = append(volumes, n.pod(v))
	}
	allow(t, n.namespace, readers("configmap", names...), accounts...)
	before := n.residentMiB()
	for _, v := range volumes {
		n.publishes(v, healed)
		n.wantContent(v, filepath.Join("..data", names[0]), "1")
	}
	after := n.residentMiB()
	t.Logf("%d MiB before, %d MiB with %d pods that show %d objects", before, after, pods, objects)
	// A copy for each account would take more without any garbage.
	if most := before + pods*objects*3/4; after > most {
		t.Errorf("the plugin takes %d MiB, want at most %d", after, most)
	}
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
