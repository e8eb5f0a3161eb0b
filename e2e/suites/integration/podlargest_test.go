package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// mostPods is how many of the largest pods a tenant has beside another pod: with an eighth of the node's memory for each of them, one more
// could fill the node.
const mostPods = 7

// besideLargest publishes one of the largest pods, and then several at once, beside another pod, and logs what that takes.
func besideLargest(t *testing.T, n *node, other *neighbor, pods int, pod func(i int) []*harness.Volume) {
	t.Helper()
	alone, before := other.alone(), n.memory()
	first := pod(0)
	var answers []error
	besideOne, tookOne := other.beside(func() { answers = n.publishAtOnce(first) })
	wantPublished(t, answers, len(first), "")
	one := n.memory()
	n.unpublishEach(first)
	var all []*harness.Volume
	for i := range pods {
		all = append(all, pod(i+1)...)
	}
	besideAll, tookAll := other.beside(func() { answers = n.publishAtOnce(all) })
	many := n.memory()
	wantPublished(t, answers, len(all), "")
	t.Logf("one pod was published in %s, %d at once in %s\nalone:        %s\nbeside one:   %s\nbeside all:   %s\nbefore: %s\none:    %s\nall:    %s",
		tookOne, pods, tookAll, alone, besideOne, besideAll, before, one, many)
	grewLittle(t, before, one)
	isCalm(t, alone, besideOne)
	isCalm(t, alone, besideAll)
}

// TestPodLimitsMostObjects: pods name as many objects as a pod may. Another pod doesn't wait for their requests.
func TestPodLimitsMostObjects(t *testing.T) {
	const volumes = mostPodObjects / mostVolumeObjects
	n, other := newAttacked(t)
	t.Run("missing", func(t *testing.T) {
		besideLargest(t, n, other, harness.Scaled(2, mostPods), func(pod int) []*harness.Volume {
			return n.podOf(volumes, func(i int) map[string]string {
				return naming(numbered(fmt.Sprintf("missing-%d-", pod), i*mostVolumeObjects, mostVolumeObjects)...)
			})
		})
	})
	t.Run("existing", func(t *testing.T) {
		names := numbered("existing-", 0, mostPodObjects)
		if err := inParallel(len(names), 8, func(i int) error {
			_, err := n.tryConfigMap(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: names[i]}, Data: map[string]string{names[i]: names[i]}})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		besideLargest(t, n, other, mostPods, func(int) []*harness.Volume {
			return n.podOf(volumes, func(i int) map[string]string { return naming(names[i*mostVolumeObjects : (i+1)*mostVolumeObjects]...) })
		})
	})
}

// TestPodLimitsMostItems: pods list as many items as a pod may, and each item is an empty file. One volume more is refused.
func TestPodLimitsMostItems(t *testing.T) {
	const volumes = mostPodItems / mostVolumeItems
	n, other := newAttacked(t)
	n.configMap("files", map[string]string{"key": ""})
	native := listing("files", mostVolumeItems-1) // the source counts too
	besideLargest(t, n, other, mostPods, func(int) []*harness.Volume {
		return n.podOf(volumes, func(int) map[string]string { return map[string]string{"volume": "native"} }, native)
	})
	// There is room for one volume, and several ask for it at once.
	pod := n.podOf(4*volumes, func(int) map[string]string { return map[string]string{"volume": "native"} }, native)
	n.publishAll(pod[:volumes-1])
	wantPublished(t, n.publishAtOnce(pod[volumes-1:]), 1, "sources, items, variables and directories")
}

// TestPodLimitsRunningPod: a pod was published when the limit of items was higher. With the present limit its volumes stay, get updates and
// are published again. Only what is new is refused.
func TestPodLimitsRunningPod(t *testing.T) {
	const volumes, items = 3, 6700 // more than 16,384 together
	n, other := newAttacked(t, "--max-volume-size=256Mi")
	n.configMap("files", map[string]string{"key": ""})
	n.configMap("app", map[string]string{"key": "1"})
	native := listing("files", items)
	running := n.podOf(volumes+1, func(i int) map[string]string {
		if i == volumes {
			return map[string]string{"configMap": "app"}
		}
		return map[string]string{"sources": "[{volume: {name: native, path: files}}, {configMap: {name: app}}]"}
	}, native)
	further := running[volumes]
	running = running[:volumes]
	n.publishAll(running)
	before := n.mountIDs()

	n.restartWith("--max-volume-size=32Mi")
	n.configMap("app", map[string]string{"key": "2"})
	shows := func(v *harness.Volume, value string) {
		t.Helper()
		n.arrives(v, "key", value, soon)
		n.wantContent(v, fmt.Sprintf("files/%x", items-1), "")
		n.hasCondition(v, "")
	}
	for _, v := range running {
		shows(v, "2")
	}
	alone := other.alone()
	var answers []error
	beside, lasted := other.beside(func() { answers = n.publishAtOnce(running) }) // as the kubelet does after its own restart
	wantPublished(t, answers, volumes, "")
	t.Logf("%d more publishes took %s\nalone:  %s\nbeside: %s\nafter:  %s", volumes, lasted, alone, beside, n.memory())
	n.configMap("app", map[string]string{"key": "3"})
	for _, v := range running {
		shows(v, "3")
	}
	after := n.mountIDs()
	for target, id := range before {
		if after[target] != id {
			t.Errorf("%s is another mount", target)
		}
	}
	wantPublished(t, n.publishAtOnce([]*harness.Volume{further}), 0, "0 are left")

	n.mustUnpublish(running[0])
	n.publishes(further, soon)
	n.unpublishEach(append(running[1:], further))
}
