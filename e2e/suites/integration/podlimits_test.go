package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// The limits of docs/limits.md for one volume and for the volumes of one pod together.
	mostVolumeItems   = 8192
	mostVolumeObjects = 256
	mostPodObjects    = 1024
	mostPodItems      = 16384
	// mostPods is how many of the largest pods a tenant has beside another pod: with an eighth of the node's memory for each of them, one
	// more could fill the node.
	mostPods = 7
)

// podOf returns volumes of one new pod, with other volumes in its spec beside them. The API server knows the pod, so a publish stores nothing.
func (n *node) podOf(count int, attributes func(i int) map[string]string, beside ...corev1.Volume) []*harness.Volume {
	n.t.Helper()
	uid := string(uuid.NewUUID())
	var volumes []*harness.Volume
	for i := range count {
		v := n.volume(attributes(i))
		v.Name, v.UID, v.Pod, v.Beside = fmt.Sprint("volume-", i), uid, "pod-"+uid, beside
		volumes = append(volumes, v)
	}
	if err := n.StoreVolumes(n.t.Context(), volumes...); err != nil {
		n.t.Fatal(err)
	}
	return volumes
}

// largestPods publishes one of the largest pods, for which the plugin needs little memory, and the others at once, beside which another pod
// starts soon. The limits are generous, because the memory includes garbage, and the machine may be busy.
func (n *node) largestPods(pod func() []*harness.Volume) {
	n.t.Helper()
	n.value("plain")
	alone, first := n.timePlain(plainPods)
	before, _ := n.resident()
	server, _ := residentOf(n.t, shared.APIServerPID())
	largest := pod()
	n.publishAll(largest)
	_, one := n.resident()
	var volumes []*harness.Volume
	for range mostPods - 1 {
		volumes = append(volumes, pod()...)
	}
	ended := make(chan []error, 1)
	begin := time.Now()
	go func() { ended <- n.publishAtOnce(volumes) }()
	beside, second := n.timePlain(plainPods)
	answers := <-ended
	took := time.Since(begin)
	_, all := n.resident()
	more, _ := residentOf(n.t, shared.APIServerPID())
	n.t.Logf("%d volumes took %s; the memory grew from %d by %d MiB for one pod and by %d for all, that of the API server by %d; the median of a plain publish was %s alone and %s beside them",
		len(volumes), took, before>>20, (one-before)>>20, (all-before)>>20, (more-server)>>20, alone, beside)
	n.wantPublished(answers, len(volumes), "")
	if beside > max(time.Second, 20*alone) {
		n.t.Errorf("a plain publish took %s beside the largest pods, and %s alone", beside, alone)
	}
	if one-before > 100<<20 {
		n.t.Errorf("the plugin's memory grew by %d MiB for one pod", (one-before)>>20)
	}
	n.unpublishAll(slices.Concat(first, second, largest, volumes))
}

// publishAtOnce publishes all volumes at the same time and returns the answers. It is for any goroutine.
func (n *node) publishAtOnce(volumes []*harness.Volume) []error {
	answers := make([]error, len(volumes))
	_ = inParallel(len(volumes), len(volumes), func(i int) error {
		answers[i] = n.Publish(n.t.Context(), volumes[i])
		return nil
	})
	return answers
}

// wantPublished fails the test unless so many answers are good and all others refuse the volume with a text.
func (n *node) wantPublished(answers []error, want int, text string) {
	n.t.Helper()
	published := 0
	for _, err := range answers {
		if err == nil {
			published++
		} else {
			wantStatus(n.t, err, codes.InvalidArgument, "Too many: the volume names ", text)
		}
	}
	if published != want {
		n.t.Errorf("%d of %d volumes were published, want %d", published, len(answers), want)
	}
}

// TestPodLimitsMostObjects: pods name as many objects as a pod may, each its own, which don't exist. Another pod doesn't wait for their
// requests.
func TestPodLimitsMostObjects(t *testing.T) {
	needsLong(t)
	n, named := newPlain(t), 0
	n.largestPods(func() []*harness.Volume {
		return n.podOf(mostPodObjects/mostVolumeObjects, func(int) map[string]string {
			var sources strings.Builder
			for range mostVolumeObjects {
				named++
				fmt.Fprintf(&sources, "- configMap: {name: missing-%d, optional: true}\n", named)
			}
			return map[string]string{"sources": sources.String()}
		})
	})
}

// TestPodLimitsMostItems: pods list as many items as a pod may, and each item is an empty file. One volume more is refused.
func TestPodLimitsMostItems(t *testing.T) {
	needsLong(t)
	const volumes = mostPodItems / mostVolumeItems
	n := newPlain(t)
	n.configMap("files", map[string]string{"key": ""})
	native := harness.NativeConfigMap("native", "files")
	for i := range mostVolumeItems - 1 { // the source counts too
		native.ConfigMap.Items = append(native.ConfigMap.Items, corev1.KeyToPath{Key: "key", Path: fmt.Sprintf("%x", i)})
	}
	attributes := func(int) map[string]string { return map[string]string{"volume": "native"} }
	n.largestPods(func() []*harness.Volume { return n.podOf(volumes, attributes, native) })
	// There is room for one volume, and several ask for it at once.
	pod := n.podOf(4*volumes, attributes, native)
	n.publishAll(pod[:volumes-1])
	n.wantPublished(n.publishAtOnce(pod[volumes-1:]), 1, "sources, items, variables and directories")
}
