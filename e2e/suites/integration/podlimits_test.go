package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// The limits of docs/limits.md for one volume and for the volumes of one pod together.
const (
	mostVolumeItems   = 8192
	mostVolumeObjects = 256
	mostPodVolumes    = 128
	mostPodObjects    = 1024
	mostPodItems      = 16384
)

// newAttacked starts a plugin for a test of attacks. Its memory and its times are those of a release.
func newAttacked(t *testing.T, args ...string) (*node, *neighbor) {
	t.Helper()
	n := newPlain(t, append(args, anyStatusPort)...)
	n.configMap("known", map[string]string{"key": n.canary()})
	n.published("known")
	n.configMap("updated", map[string]string{"round": "0"})
	return n, &neighbor{node: n, updated: n.published("updated")}
}

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

// naming returns the sources of a volume that names ConfigMaps, all of which may be missing.
func naming(names ...string) map[string]string {
	var sources strings.Builder
	for _, name := range names {
		fmt.Fprintf(&sources, "- configMap: {name: %s, optional: true}\n", name)
	}
	return map[string]string{"sources": sources.String()}
}

// numbered returns names that end in the numbers from first on.
func numbered(prefix string, first, count int) []string {
	var names []string
	for i := range count {
		names = append(names, fmt.Sprint(prefix, first+i))
	}
	return names
}

// listing returns a native volume that shows a key in many files. The ConfigMap may be missing.
func listing(configMap string, items int) corev1.Volume {
	optional := true
	native := harness.NativeConfigMap("native", configMap)
	native.ConfigMap.Optional = &optional
	for i := range items {
		native.ConfigMap.Items = append(native.ConfigMap.Items, corev1.KeyToPath{Key: "key", Path: fmt.Sprintf("%x", i)})
	}
	return native
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
func wantPublished(t *testing.T, answers []error, want int, text string) {
	t.Helper()
	published := 0
	for _, err := range answers {
		if err == nil {
			published++
		} else {
			wantStatus(t, err, codes.InvalidArgument, "Too many: the volume names ", text)
		}
	}
	if published != want {
		t.Errorf("%d of %d volumes were published, want %d", published, len(answers), want)
	}
}

// TestPodLimitsDeepPaths: pods put a path of 3,801 bytes in front of the 8,192 items of a native volume, so each volume would have 30 MiB of
// paths. The plugin refuses them before it makes a path.
func TestPodLimitsDeepPaths(t *testing.T) {
	const pods, volumes = 7, 4
	n, other := newAttacked(t)
	attributes := func(int) map[string]string {
		return map[string]string{"sources": "[{volume: {name: native, path: " + strings.Repeat("a/", 1900) + "b}}]"}
	}
	var deep []*harness.Volume
	for range pods {
		deep = append(deep, n.podOf(volumes, attributes, listing("none", mostVolumeItems))...)
	}
	alone, before := other.alone(), n.memory()
	bursts := harness.Scaled(4, 20)
	var answers [][]error
	beside, lasted := other.beside(func() {
		for range bursts {
			answers = append(answers, n.publishAtOnce(deep))
		}
	})
	after := n.memory()
	t.Logf("%d publishes took %s\nalone:  %s\nbeside: %s\nbefore: %s\nafter:  %s", bursts*len(deep), lasted, alone, beside, before, after)
	for _, burst := range answers {
		wantPublished(t, burst, 0, "bytes of names and paths")
	}
	grewLittle(t, before, after)
	isCalm(t, alone, beside)
}

// TestPodLimitsObjects: one pod names 8,192 objects that don't exist, 256 in each volume. Only as many volumes are published as
// name 1,024 together.
func TestPodLimitsObjects(t *testing.T) {
	const volumes, want = 32, mostPodObjects / mostVolumeObjects
	n, other := newAttacked(t)
	many := n.podOf(volumes, func(i int) map[string]string {
		return naming(numbered("missing-", i*mostVolumeObjects, mostVolumeObjects)...)
	})
	alone, before := other.alone(), n.memory()
	watched, rounds := watches(t.Context(), t, "configmaps"), other.rounds
	var answers []error
	beside, lasted := other.beside(func() { answers = n.publishAtOnce(many) })
	after := n.memory()
	own := watches(t.Context(), t, "configmaps") - watched - (other.rounds - rounds)
	t.Logf("%d publishes took %s, and there are %d more watches\nalone:  %s\nbeside: %s\nbefore: %s\nafter:  %s", len(many), lasted, own, alone, beside, before, after)
	wantPublished(t, answers, want, "ConfigMaps and Secrets")
	if own > mostPodObjects {
		t.Errorf("the pod has %d watches, more than %d", own, mostPodObjects)
	}
	grewLittle(t, before, after)
	isCalm(t, alone, beside)
}

// TestPodLimitsReport: pods have as many volumes as they may, and each volume names the same objects by the longest names. The report has each
// name once.
func TestPodLimitsReport(t *testing.T) {
	const objects = mostPodObjects / mostPodVolumes
	pods := harness.Scaled(4, 20)
	n, other := newAttacked(t)
	names := numbered(strings.Repeat("n", longestKey-1), 0, objects)
	var volumes []*harness.Volume
	for range pods {
		volumes = append(volumes, n.podOf(mostPodVolumes, func(int) map[string]string { return naming(names...) })...)
	}
	alone, before := other.alone(), n.memory()
	empty, _ := n.statusSize()
	var answers []error
	beside, lasted := other.beside(func() { answers = n.publishAtOnce(volumes) })
	wantPublished(t, answers, len(volumes), "")
	size, fetched := n.statusSize()
	after := n.memory()
	pairs := pods * mostPodObjects
	t.Logf("%d pods took %s; the report of %d pairs of volume and object has %d bytes, %d of them for other volumes, and took %s\nalone:  %s\nbeside: %s\nbefore: %s\nafter:  %s",
		pods, lasted, pairs, size, empty, fetched, alone, beside, before, after)
	if most := int64(pairs * longestKey / 2); size > most {
		t.Errorf("the report has %d bytes, more than %d", size, most)
	}
	grewLittle(t, before, after)
	isCalm(t, alone, beside)
	report, err := n.report()
	if err != nil {
		t.Fatal(err)
	}
	if own := len(report.Volumes); own < pods*mostPodVolumes {
		t.Errorf("the report has %d volumes, want at least %d", own, pods*mostPodVolumes)
	}
}

// statusSize returns how many bytes the report has and how long it takes to get it.
func (n *node) statusSize() (size int64, took time.Duration) {
	n.t.Helper()
	begin := time.Now()
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://"+n.statusAddress()+"/status", http.NoBody)
	if err != nil {
		n.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		n.t.Fatal(err)
	}
	defer response.Body.Close()
	if size, err = io.Copy(io.Discard, response.Body); err != nil {
		n.t.Fatal(err)
	}
	return size, time.Since(begin)
}
