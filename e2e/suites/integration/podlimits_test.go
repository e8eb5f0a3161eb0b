package integration

import (
	"fmt"
	"io"
	"net/http"
	"slices"
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

// neighbor is another pod of the node, which wants to notice nothing. It has one volume that is updated, and publishes more.
type neighbor struct {
	*node
	updated *harness.Volume
	rounds  int
}

// took has the times of a neighbor's publishes of an object that the plugin knows, of publishes of one that it has to read, and of updates, each with the
// write to the API server.
type took struct{ known, cold, updates []time.Duration }

func (x *took) String() string {
	figures := func(all []time.Duration) string {
		slices.Sort(all)
		return fmt.Sprintf("%.0f/%.0f ms", all[len(all)/2].Seconds()*1000, all[len(all)*99/100].Seconds()*1000)
	}
	return fmt.Sprintf("publish %s, cold publish %s, update %s (p50/p99 of %d)", figures(x.known), figures(x.cold), figures(x.updates), len(x.cold))
}

// round publishes two volumes and updates one.
func (b *neighbor) round(times *took) {
	b.t.Helper()
	b.rounds++
	name, value := fmt.Sprint("cold-", b.rounds), fmt.Sprint(b.rounds)
	b.configMap(name, map[string]string{"key": value})
	publish := func(configMap string) time.Duration {
		v := b.short(configMap)
		if err := b.StorePod(b.t.Context(), v); err != nil {
			b.t.Fatal(err)
		}
		from := time.Now()
		b.mustPublish(v)
		return time.Since(from)
	}
	times.known = append(times.known, publish("known"))
	times.cold = append(times.cold, publish(name))
	from := time.Now()
	b.configMap("updated", map[string]string{"round": value})
	b.arrives(b.updated, "round", value, soon)
	times.updates = append(times.updates, time.Since(from))
}

// alone measures the neighbor while nobody asks for anything.
func (b *neighbor) alone() *took {
	b.t.Helper()
	times := &took{}
	for range harness.Scaled(15, 100) {
		b.round(times)
	}
	return times
}

// beside measures the neighbor until attack has returned, at least once. attack runs in a goroutine.
func (b *neighbor) beside(attack func()) (times *took, lasted time.Duration) {
	b.t.Helper()
	times = &took{}
	ended := make(chan time.Duration, 1)
	begin := time.Now()
	go func() {
		attack()
		ended <- time.Since(begin)
	}()
	for {
		b.round(times)
		select {
		case lasted = <-ended:
			return times, lasted
		default:
		}
	}
}

// isCalm fails the test if the neighbor waited for much longer beside an attack than alone. It is generous, because the machine may be busy
// and all share the processors. The log has the figures.
func isCalm(t *testing.T, alone, beside *took) {
	t.Helper()
	for what, times := range map[string][2][]time.Duration{
		"publish": {alone.known, beside.known}, "cold publish": {alone.cold, beside.cold}, "update": {alone.updates, beside.updates},
	} {
		slices.Sort(times[0])
		slices.Sort(times[1])
		without, with := times[0][len(times[0])/2], times[1][len(times[1])/2]
		if with > max(time.Second, 20*without) {
			t.Errorf("the median of another pod's %s was %s beside the attack, and %s alone", what, with, without)
		}
	}
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

// wantPublished fails the test unless so many answers are good and all others refuse the volume with a text. It returns the good volumes.
func wantPublished(t *testing.T, volumes []*harness.Volume, answers []error, want int, text string) (published []*harness.Volume) {
	t.Helper()
	for i, err := range answers {
		if err == nil {
			published = append(published, volumes[i])
		} else {
			wantStatus(t, err, codes.InvalidArgument, "Too many: the volume names ", text)
		}
	}
	if len(published) != want {
		t.Errorf("%d of %d volumes were published, want %d", len(published), len(volumes), want)
	}
	return published
}

// memory is what the plugin and the API server have, in bytes.
type memory struct{ plugin, pluginMost, server int64 }

func (n *node) memory() memory {
	n.t.Helper()
	now, most := n.resident()
	server, _ := residentOf(n.t, shared.APIServerPID())
	return memory{plugin: now, pluginMost: most, server: server}
}

func (m memory) String() string {
	return fmt.Sprintf("plugin %d MiB (at most %d), API server %d MiB", m.plugin>>20, m.pluginMost>>20, m.server>>20)
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
		wantPublished(t, deep, burst, 0, "bytes of names and paths")
	}
	if grown := after.pluginMost - before.plugin; grown > 100<<20 {
		t.Errorf("the plugin's memory grew by %d MiB", grown>>20)
	}
	isCalm(t, alone, beside)
}

// TestPodLimitsObjects: one pod names 8,192 objects that don't exist, 256 in each volume. All volumes are published at once, so their checks
// run beside each other.
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
	wantPublished(t, many, answers, want, "ConfigMaps and Secrets")
	if own > mostPodObjects {
		t.Errorf("the pod has %d watches, more than %d", own, mostPodObjects)
	}
	if grown := after.pluginMost - before.plugin; grown > 100<<20 {
		t.Errorf("the plugin's memory grew by %d MiB", grown>>20)
	}
	isCalm(t, alone, beside)
}

// TestPodLimitsReport: pods have as many volumes as they may, and each volume names the same objects by the longest names. The report has each
// name once.
func TestPodLimitsReport(t *testing.T) {
	const objects = mostPodObjects / mostPodVolumes
	pods := harness.Scaled(2, 20)
	n, other := newAttacked(t)
	names := numbered(strings.Repeat("n", longestKey-1), 0, objects)
	var volumes []*harness.Volume
	for range pods {
		volumes = append(volumes, n.podOf(mostPodVolumes, func(int) map[string]string { return naming(names...) })...)
	}
	before := n.memory()
	empty, _ := n.statusSize()
	var answers []error
	beside, lasted := other.beside(func() { answers = n.publishAtOnce(volumes) })
	wantPublished(t, volumes, answers, len(volumes), "")
	size, fetched := n.statusSize()
	after := n.memory()
	pairs := pods * mostPodObjects
	t.Logf("%d pods took %s; the report of %d pairs of volume and object has %d bytes, %d of them for other volumes, and took %s\nbeside: %s\nbefore: %s\nafter:  %s",
		pods, lasted, pairs, size, empty, fetched, beside, before, after)
	if most := int64(pairs * longestKey / 2); size > most {
		t.Errorf("the report has %d bytes, more than %d", size, most)
	}
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
