package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"
)

// sized returns an object with some keys of one size.
func sized(keys int, size int64) Object {
	o := Object{Exists: Yes, Data: sets.New[string](), sizes: map[string]int64{}}
	for i := range keys {
		o.Data.Insert(fmt.Sprint("key-", i))
		o.sizes[fmt.Sprint("key-", i)] = size
	}
	return o
}

// volumesNamed returns native volumes v0, v1, and so on, each of one ConfigMap, and their mounts.
func volumesNamed(n int, object string) string {
	var mounts, volumes []string
	for i := range n {
		mounts = append(mounts, fmt.Sprintf("{name: v%d, mountPath: /v%d}", i, i))
		volumes = append(volumes, fmt.Sprintf("{name: v%d, configMap: {name: %s}}", i, object))
	}
	return fmt.Sprintf("containers: [{name: c, volumeMounts: [%s]}]\nvolumes: [%s]", strings.Join(mounts, ", "), strings.Join(volumes, ", "))
}

func TestLabel(t *testing.T) {
	objects := map[string]Object{
		`ConfigMap "ns/small"`: {Exists: Yes, Data: sets.New("tls"), sizes: map[string]int64{"tls": 1}},
		`ConfigMap "ns/many"`:  sized(8193, 0), `ConfigMap "ns/half"`: sized(4097, 1), `ConfigMap "ns/large"`: sized(1, 1<<20),
		`Secret "ns/hidden"`: {Exists: Unknown},
	}
	for i := range 33 {
		objects[fmt.Sprintf(`ConfigMap "ns/large-%d"`, i)] = sized(1, 1<<20)
	}
	manyLarge := volumesNamed(33, "large-N")
	for i := range 33 {
		manyLarge = strings.Replace(manyLarge, "large-N", fmt.Sprint("large-", i), 1)
	}
	volumeOf := func(source string) string {
		return "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, " + source + "}]"
	}
	sources := func(n int) string {
		return volumeOf("projected: {sources: [" + strings.Repeat("{configMap: {name: small}}, ", n) + "]}")
	}
	items := func(n int) string {
		return volumeOf("configMap: {name: small, items: [" + strings.Repeat("{key: tls, path: a}, ", n) + "]}")
	}
	var over []string
	for i := range 129 {
		over = append(over, fmt.Sprintf("v%d: the pod would have more than 128 volumes of the driver", i))
	}
	for _, test := range []struct {
		name, meta, spec string
		live, native     []string
		problems, unread []string
	}{
		{name: "one", spec: volumesNamed(1, "small"), live: []string{"v0"}},
		{name: "many volumes", spec: volumesNamed(129, "small"), native: over},
		{name: "none", spec: "containers: [{name: c}]"},
		{name: "a token", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}, {configMap: {name: small}}]}}]"},
		{name: "is live already", spec: "containers: [{name: c, volumeMounts: [{name: refvol-v, mountPath: /v}]}]\nvolumes: [{name: v, configMap: {name: small}}, {name: refvol-v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {volume: v}}}]"},
		{name: "subPath", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v, subPath: tls}]}]\nvolumes: [{name: v, secret: {secretName: s}}]", native: []string{"v: it is mounted by subPath only"}},
		{name: "below items", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}, {name: e, mountPath: /v/a/b}]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: small, items: [{key: tls, path: a/tls}]}}]", native: []string{"v: a mount lies below its files"}},
		{name: "beside items", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}, {name: e, mountPath: /v/b}]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: small, items: [{key: tls, path: a/tls}]}}]", live: []string{"v"}},
		{name: "at a key", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}, {name: e, mountPath: /v/tls}]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: small}}]", live: []string{"v"}, problems: []string{"volume v: "}},
		{name: "left out", meta: "labels: {refvol.dev/live: 'false'}", spec: volumesNamed(1, "small"), native: []string{`v0: the pod is left out by refvol.dev/live: "false"`}},
		{name: "Windows", spec: "os: {name: windows}\n" + volumesNamed(1, "small"), native: []string{"v0: the pod is of Windows"}},
		{name: "as many sources as may be", spec: sources(256), live: []string{"v"}},
		{name: "many sources", spec: sources(257), native: []string{"v: it has more than 256 sources"}},
		{name: "as many items as may be", spec: items(8192), live: []string{"v"}},
		{name: "many items", spec: items(8193), native: []string{"v: it has more than 8,192 items"}},
		{name: "many keys", spec: volumesNamed(1, "many"), live: []string{"v0"}, problems: []string{"volume v0: has 8193 keys, more than 8192 (--max-volume-size)"}},
		{name: "large", spec: volumesNamed(1, "half"), live: []string{"v0"}},
		{name: "large together", spec: volumesNamed(4, "half"), live: []string{"v0", "v1", "v2", "v3"}, problems: []string{"the files of its live volumes take 98328 KiB, more than a pod's share of --max-total-size, by default 65536 KiB"}},
		{name: "many objects", spec: manyLarge, problems: []string{"the objects of its live volumes take 33811 KiB, more than a pod's share of --max-cached-size, by default 32768 KiB"}},
		{name: "not to be read", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, secret: {secretName: hidden}}]", live: []string{"v"}, unread: []string{`Secret "ns/hidden"`}},
	} {
		var p corev1.Pod
		text := fmt.Sprintf("metadata: {name: p, namespace: ns}\nspec:\n  %s\n", strings.ReplaceAll(test.spec, "\n", "\n  "))
		if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if test.meta != "" {
			p.Labels = map[string]string{liveLabel: "false"}
		}
		c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: &fakeCluster{objects: objects}})
		if err != nil {
			t.Fatal(err)
		}
		report, err := c.Label(t.Context(), "ns", MaxVolumeSize, []corev1.Pod{p})
		if err != nil {
			t.Fatal(err)
		}
		got := report.Pods[0]
		var native []string
		for _, v := range got.Native {
			native = append(native, v.Volume+": "+v.Reason)
		}
		if test.live != nil && !slices.Equal(got.Live, test.live) || !slices.Equal(native, test.native) || !slices.Equal(got.Unread, test.unread) {
			t.Errorf("%s: live %q, native %q, unread %q", test.name, got.Live, native, got.Unread)
		}
		if !slices.EqualFunc(got.Problems, test.problems, strings.HasPrefix) {
			t.Errorf("%s: problems %q, want %q", test.name, got.Problems, test.problems)
		}
	}
}

// Pods of one owner with the same changes are one line. Pods that have ended don't count.
func TestLabelText(t *testing.T) {
	podOf := func(name, owner string, phase corev1.PodPhase) corev1.Pod {
		var p corev1.Pod
		if err := yaml.Unmarshal([]byte("spec: {"+strings.ReplaceAll(volumesNamed(1, "many"), "\n", ", ")+"}"), &p); err != nil {
			t.Fatal(err)
		}
		p.Name, p.Namespace, p.Status.Phase = name, "ns", phase
		if isController := true; owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, Controller: &isController}}
		}
		return p
	}
	c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: &fakeCluster{objects: map[string]Object{`ConfigMap "ns/many"`: sized(8193, 0)}}})
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.Label(t.Context(), "ns", MaxVolumeSize, []corev1.Pod{
		podOf("web-1", "web", corev1.PodRunning), podOf("web-2", "web", corev1.PodRunning), podOf("bare", "", corev1.PodRunning), podOf("done", "", corev1.PodSucceeded),
	})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	const want = `POD    OWNER           PODS  LIVE
web-1  ReplicaSet/web  2     v0
bare   -               1     v0

could not start: pod web-1: volume v0: has 8193 keys, more than 8192 (--max-volume-size)
could not start: pod bare: volume v0: has 8193 keys, more than 8192 (--max-volume-size)
3 pods in namespace ns: 3 would change, 3 could not start
`
	if text.String() != want || report.CannotStart() != 3 {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}
