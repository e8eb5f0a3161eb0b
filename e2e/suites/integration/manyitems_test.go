package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// manyItems returns as many items as a volume may list: one for each page of the default --max-volume-size. The object
// has the first key only.
func manyItems() []corev1.KeyToPath {
	items := make([]corev1.KeyToPath, 4096)
	for i := range items {
		items[i] = corev1.KeyToPath{Key: "n", Path: strconv.FormatInt(int64(i), 36)}
	}
	items[0] = corev1.KeyToPath{Key: "key", Path: "key"}
	return items
}

// inOnePod returns volumes of one pod, with what is beside them. The first one stores the pod.
func (n *node) inOnePod(count int, attributes map[string]string, beside ...corev1.Volume) []*harness.Volume {
	volumes := make([]*harness.Volume, count)
	for i := range volumes {
		if volumes[i] = n.volume(attributes); i == 0 {
			continue
		}
		of := *volumes[0]
		of.Name, of.Unknown = fmt.Sprint("v", i), true
		volumes[i] = &of
		readOnly := true
		beside = append(beside, corev1.Volume{Name: of.Name, VolumeSource: corev1.VolumeSource{
			CSI: &corev1.CSIVolumeSource{Driver: harness.DriverName, ReadOnly: &readOnly, VolumeAttributes: attributes},
		}})
	}
	volumes[0].Beside = beside
	return volumes
}

// publishAll publishes volumes at the same time, and returns how often each code was the answer.
func (n *node) publishAll(volumes []*harness.Volume) map[codes.Code]int {
	var publishing sync.WaitGroup
	answers := make([]error, len(volumes))
	for i, v := range volumes {
		publishing.Go(func() { answers[i] = n.Publish(n.t.Context(), v) })
	}
	publishing.Wait()
	outcomes := map[codes.Code]int{}
	for _, err := range answers {
		if outcomes[status.Code(err)]++; err != nil && outcomes[status.Code(err)] == 1 {
			n.t.Log(err)
		}
	}
	return outcomes
}

// resident returns the bytes of memory that the plugin has now, and those that it had at most.
func (n *node) resident() (now, most int64) {
	n.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	kibibytes := func(name string) int64 {
		found := regexp.MustCompile(`(?m)^` + name + `:\s*(\d+) kB$`).FindSubmatch(text)
		if found == nil {
			n.t.Fatalf("no %s in %s", name, text)
		}
		return mustNumber(n.t)(strconv.ParseInt(string(found[1]), 10, 64)) << 10
	}
	return kibibytes("VmRSS"), kibibytes("VmHWM")
}

// One pod has a volume with as many items as one may have, and many volumes that show it. All are
// published at the same time: the plugin's memory stays bounded, and another pod's volumes beside them
// don't wait. Once they are mounted, each takes little, also after a restart.
func TestManyVolumesOfManyItems(t *testing.T) {
	binary, err := shared.plain() // its memory is that of a release
	if err != nil {
		t.Fatal(err)
	}
	n := newNodeWith(t, harness.PluginOptions{Binary: binary, Kubeconfig: shared.kubeconfig, Args: []string{"-v=2"}})
	n.configMap("plain", map[string]string{"key": n.canary()})
	before := n.canary()
	n.configMap("many", map[string]string{"key": before})
	own := corev1.ConfigMapVolumeSource{Items: manyItems(), Optional: new(true)}
	const count = 128
	volumes := n.inOnePod(count, map[string]string{"volume": "own"}, ownConfigMap("own", own, "many"))
	if err := n.StorePod(t.Context(), volumes[0]); err != nil {
		t.Fatal(err)
	}
	alone, published := n.timePlain(plainPods)
	start, _ := n.resident()

	begin := time.Now()
	answered := make(chan map[codes.Code]int, 1)
	go func() { answered <- n.publishAll(volumes) }()
	beside, more := n.timePlain(plainPods)
	outcomes := <-answered
	now, most := n.resident()
	t.Logf("%d publishes took %v: %v; the plugin's memory grew from %d to %d MiB, by the end to %d; the median of a plain publish was %v alone and %v beside them",
		count, time.Since(begin), outcomes, start>>20, most>>20, now>>20, alone, beside)
	if outcomes[codes.OK] != count {
		t.Errorf("the answers are %v, want %d OK", outcomes, count)
	}
	wantMemory(t, "beside the publishes", most-start, count)
	n.wantContent(volumes[count-1], "key", before)

	n.mustKill()
	n.mustStart()
	after := n.canary()
	n.configMap("many", map[string]string{"key": after})
	for _, v := range volumes {
		n.arrives(v, "key", after, time.Minute)
	}
	_, most = n.resident()
	t.Logf("a restarted plugin had %d MiB at most", most>>20)
	wantMemory(t, "after the restart", most-start, count)
	for _, v := range slices.Concat(volumes, published, more) {
		n.mustUnpublish(v)
	}
	n.wantNothingLeft()
}

// wantMemory compares how much memory a plugin took for volumes of many items with what docs/limits.md says.
func wantMemory(t *testing.T, when string, grown int64, count int) {
	t.Helper()
	if most := int64(64<<20 + count<<19); grown > most {
		t.Errorf("%s: the plugin's memory grew by %d MiB, more than %d", when, grown>>20, most>>20)
	}
}
