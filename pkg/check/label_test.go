package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/pkg/volume"
)

func specOf(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	spec := &corev1.PodSpec{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestMadeLive: only what the policy itself makes counts as made by an earlier run.
func TestMadeLive(t *testing.T) {
	csi := func(name, fields string) string { return fmt.Sprintf("{name: %s, csi: {%s}}", name, fields) }
	const ours = "driver: csi.refvol.dev, readOnly: true, "
	for volumes, want := range map[string]string{
		csi("refvol-a", ours+"volumeAttributes: {volume: a}"):                                                                                "map[a:refvol-a]",
		csi("refvol-a", ours+"volumeAttributes: {volume: a, spread: 5m}"):                                                                    "map[a:refvol-a]",
		csi("refvol-a", ours+"volumeAttributes: {volume: a, uid: '1'}"):                                                                      "map[]",
		csi("refvol-a", ours+"volumeAttributes: {spread: 5m}"):                                                                               "map[]",
		csi("refvol-a", ours+"volumeAttributes: {secret: a}"):                                                                                "map[]",
		csi("own-a", ours+"volumeAttributes: {volume: a}"):                                                                                   "map[]",
		csi("refvol-a", "driver: csi.refvol.dev, volumeAttributes: {volume: a}"):                                                             "map[]",
		csi("refvol-a", "driver: csi.refvol.dev, readOnly: false, volumeAttributes: {volume: a}"):                                            "map[]",
		csi("refvol-a", "driver: csi.example.com, readOnly: true, volumeAttributes: {volume: a}"):                                            "map[]",
		"{name: a, secret: {secretName: a}}":                                                                                                 "map[]",
		csi("refvol-x", ours+"volumeAttributes: {volume: a}") + ", " + csi("refvol-y", ours+"volumeAttributes: {volume: a}"):                 "map[a:refvol-x]",
		csi("refvol-a", ours+"volumeAttributes: {volume: a}") + ", " + csi("refvol-b", ours+"volumeAttributes: {volume: b}"):                 "map[a:refvol-a b:refvol-b]",
		csi("other", "driver: csi.example.com") + ", " + csi("refvol-b", ours+"volumeAttributes: {volume: b}") + ", {name: a, emptyDir: {}}": "map[b:refvol-b]",
	} {
		made := madeLive(specOf(t, "containers: []\nvolumes: ["+volumes+"]"), driver)
		if got := fmt.Sprint(made); got != want {
			t.Errorf("%s: got %s, want %s", volumes, got, want)
		}
	}
}

// TestLiveName: a live volume has the prefix before the native name if a label has room for it and no volume has that name.
// Otherwise its number in the pod makes it unique.
func TestLiveName(t *testing.T) {
	fits, long := strings.Repeat("f", 63-len(livePrefix)), strings.Repeat("l", 64-len(livePrefix))
	for _, test := range []struct {
		volumes []string
		native  string
		want    string
	}{
		{[]string{"a"}, "a", "refvol-a"},
		{[]string{"x", "a"}, "a", "refvol-a"},
		{[]string{fits}, fits, "refvol-" + fits},
		{[]string{"x", long}, long, "refvol--" + long[:50] + "-1"},
		{[]string{"x", "refvol-a", "a"}, "a", "refvol--a-2"},
		{[]string{"refvol-a", "refvol--a-2", "a"}, "a", ""},
	} {
		spec := &corev1.PodSpec{}
		for _, name := range test.volumes {
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name})
		}
		if got := liveName(spec, test.native); got != test.want {
			t.Errorf("%s of %q: got %q, want %q", test.native, test.volumes, got, test.want)
		}
	}
}

// TestWithLive: a live volume is added unless the pod has it already.
func TestWithLive(t *testing.T) {
	spec := specOf(t, "containers: [{name: c}]\nvolumes: [{name: a, secret: {secretName: a}}, {name: b, secret: {secretName: b}}, {name: refvol-a, emptyDir: {}}]")
	var names []string
	for _, v := range withLive(spec, driver, map[string]string{"a": "refvol-a", "b": "refvol-b"}).Volumes {
		names = append(names, v.Name)
	}
	if want := []string{"a", "b", "refvol-a", "refvol-b"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// TestLabelLimits: a pod that takes exactly what is allowed starts.
func TestLabelLimits(t *testing.T) {
	const page = 4096
	// An object of one key that takes n bytes of the cache.
	cached := func(n int64) Object { return sized(1, n-objectSize-keySize-int64(len("key-0"))) }
	twoKeys := Object{Exists: Yes, Data: sets.New("a", "b"), sizes: map[string]int64{"a": 8191 * page, "b": 8192 * page}}
	over := Object{Exists: Yes, Data: sets.New("a", "b"), sizes: map[string]int64{"a": 8191 * page, "b": 8192*page + 1}}
	const cache = "the objects of its live volumes take "
	for _, test := range []struct {
		name      string
		object    Object
		mount     string // in the volume
		maxVolume int64
		problems  []string
	}{
		{"two pages", sized(1, 2*page), "", 2 * page, nil},
		{"a page for each key", sized(2, page), "", 2 * page, nil},
		{"a byte more than two pages", sized(1, 2*page+1), "", 2 * page, []string{"volume v: its files take 12 KiB, more than 8 KiB (--max-volume-size)"}},
		{"three keys for two pages", sized(3, 0), "", 2 * page, []string{"volume v: has 3 keys, more than 2 (--max-volume-size)"}},
		{"all of the cache", cached(podObjects), "", podObjects, nil},
		{"more than the cache", cached(podObjects + 1), "", podObjects, []string{cache}},
		{"all of the pod's files", twoKeys, "", podFiles, []string{cache}},
		{"more than the pod's files", over, "", podFiles, []string{"the files of its live volumes take ", cache}},
		{"a mount at one of the most keys", sized(mostItems, 0), "key-7", MaxVolumeSize, []string{"volume v: "}},
		{"a mount at one of more keys", sized(mostItems+1, 0), "key-7", MaxVolumeSize, []string{"volume v: has 8193 keys"}},
	} {
		mounts := "{name: v, mountPath: /v}"
		if test.mount != "" {
			mounts += ", {name: e, mountPath: /v/" + test.mount + "}"
		}
		p := corev1.Pod{Spec: *specOf(t, "containers: [{name: c, volumeMounts: ["+mounts+"]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: o}}]")}
		p.Name, p.Namespace = "p", "ns"
		c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: &fakeCluster{objects: map[string]Object{`ConfigMap "ns/o"`: test.object}}})
		if err != nil {
			t.Fatal(err)
		}
		report, err := c.Label(t.Context(), "ns", test.maxVolume, []corev1.Pod{p})
		if err != nil {
			t.Fatal(err)
		}
		if got := report.Pods[0].Problems; !slices.EqualFunc(got, test.problems, strings.HasPrefix) {
			t.Errorf("%s: problems %q, want %q", test.name, got, test.problems)
		}
	}
}

// TestMostVolumes: as many volumes of the driver as a pod may have become live, those that the author made included.
func TestMostVolumes(t *testing.T) {
	for _, test := range []struct{ native, own, want int }{
		{volume.MaxPodVolumes, 0, volume.MaxPodVolumes}, {volume.MaxPodVolumes - 1, 1, volume.MaxPodVolumes - 1}, {volume.MaxPodVolumes, 1, 0},
	} {
		spec := specOf(t, volumesNamed(test.native, "small"))
		for i := range test.own {
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: fmt.Sprint("own", i), VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driver}}})
		}
		live, native := label(&corev1.Pod{Spec: *spec}, driver)
		if len(live) != test.want || len(native) != test.native-test.want {
			t.Errorf("%d native volumes and %d own: %d become live, want %d: %q", test.native, test.own, len(live), test.want, slices.Sorted(maps.Keys(live)))
		}
	}
}

// TestMostNames: as many sources and items as a pod may have become live. Those of the native volumes that the pod's own volumes show count.
func TestMostNames(t *testing.T) {
	projected := func(sources, items int) corev1.Volume {
		p := &corev1.ProjectedVolumeSource{}
		for range sources {
			p.Sources = append(p.Sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{}})
		}
		p.Sources[0].Secret.Items = make([]corev1.KeyToPath, items)
		return corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: p}}
	}
	const objects, items = volume.MaxPodObjects / 4, volume.MaxPodItems / 4
	for _, test := range []struct {
		name  string
		each  corev1.Volume
		add   int // volumes of one ConfigMap that are mounted, too
		shown int // volumes of the driver that show a volume of one ConfigMap that is not mounted
		want  string
	}{
		{name: "1024 sources", each: projected(objects, 0)},
		{name: "1025 sources", each: projected(objects, 0), add: 1, want: "the live volumes of the pod would have more than 1,024 sources"},
		{name: "1025 sources, one of the pod's own", each: projected(objects, 0), shown: 1, want: "the live volumes of the pod would have more than 1,024 sources"},
		{name: "1024 sources, some of the pod's own", each: projected(objects-1, 0), add: 1, shown: 3},
		{name: "16384 sources and items", each: projected(objects, items-objects)},
		{name: "16385 sources and items", each: projected(objects-1, items-objects+1), add: 1, want: "the live volumes of the pod would have more than 16,384 sources and items"},
	} {
		spec := specOf(t, volumesNamed(4+test.add, "small"))
		for i := range 4 {
			spec.Volumes[i].VolumeSource = test.each.VolumeSource
		}
		own := corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}
		spec.Volumes = append(spec.Volumes, own)
		for i := range test.shown {
			spec.Volumes = append(spec.Volumes, corev1.Volume{Name: fmt.Sprint("shows", i), VolumeSource: corev1.VolumeSource{
				CSI: &corev1.CSIVolumeSource{Driver: driver, VolumeAttributes: map[string]string{"volume": "own"}},
			}})
		}
		live, native := label(&corev1.Pod{Spec: *spec}, driver)
		if want := 4 + test.add; test.want == "" && (len(live) != want || len(native) > 0) || test.want != "" && (len(live) > 0 || len(native) != want) {
			t.Errorf("%s: %d become live, %d stay native: %v", test.name, len(live), len(native), native[:min(len(native), 1)])
		}
		for _, n := range native {
			if n.Reason != test.want {
				t.Errorf("%s: %s stays native, because %s; want: %s", test.name, n.Volume, n.Reason, test.want)
			}
		}
	}
}

// TestNoSources: a projected volume without sources has nothing that could be live.
func TestNoSources(t *testing.T) {
	spec := specOf(t, "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, projected: {sources: []}}]")
	if live, native := label(&corev1.Pod{Spec: *spec}, driver); len(live)+len(native) > 0 {
		t.Errorf("live %v, native %v", live, native)
	}
}

// TestLabelTextOfNothing: without a live volume there is no table, and only pods with problems can't start.
func TestLabelTextOfNothing(t *testing.T) {
	report := &LiveReport{Namespace: "ns", Pods: []LivePod{{Name: "a", Replicas: 2}, {Name: "b", Replicas: 3, Problems: []string{"it is full"}}}}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	const want = "could not start: pod b: it is full\n5 pods in namespace ns: 0 would change, 3 could not start\n"
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}
