package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/must"
)

func specOf(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	spec := &corev1.PodSpec{}
	must.Do(t, yaml.UnmarshalStrict([]byte(text), spec))
	return spec
}

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

// TestLabelLive: what of a pod's volumes becomes live is what the API server answers. The sizes are checked here: a pod that takes exactly what is
// allowed starts.
func TestLabelLive(t *testing.T) {
	const page, cache = 4096, "the objects of its live volumes take "
	// An object of one key that takes n bytes of the cache.
	cached := func(n int64) Object { return sized(1, n-objectSize-keySize-int64(len("key-0"))) }
	twoKeys := Object{Exists: Yes, Data: sets.New("a", "b"), sizes: map[string]int64{"a": 8191 * page, "b": 8192 * page}}
	over := Object{Exists: Yes, Data: sets.New("a", "b"), sizes: map[string]int64{"a": 8191 * page, "b": 8192*page + 1}}
	objects := map[string]Object{
		`ConfigMap "ns/small"`: {Exists: Yes, Data: sets.New("tls"), sizes: map[string]int64{"tls": 1}},
		`ConfigMap "ns/many"`:  sized(8193, 0), `ConfigMap "ns/half"`: sized(4097, 1), `ConfigMap "ns/large"`: sized(1, 1<<20),
		`Secret "ns/hidden"`: {Exists: Unknown},
	}
	manyLarge, manyNames := volumesNamed(33, "large-N"), []string{}
	for i := range 33 {
		manyLarge = strings.Replace(manyLarge, "large-N", fmt.Sprint("large-", i), 1)
		manyNames = append(manyNames, fmt.Sprint("v", i))
		objects[fmt.Sprintf(`ConfigMap "ns/large-%d"`, i)] = sized(1, 1<<20)
	}
	slices.Sort(manyNames)
	type labelLive struct {
		name, spec       string
		object           Object // the ConfigMap o
		maxVolume        int64  // 0 means the default
		live, native     []string
		problems, unread []string
	}
	// limit is a volume v that shows o, in which something else is mounted unless mount is "".
	limit := func(name string, object Object, mount string, maxVolume int64, problems ...string) labelLive {
		mounts := "{name: v, mountPath: /v}"
		if mount != "" {
			mounts += ", {name: e, mountPath: /v/" + mount + "}"
		}
		spec := "containers: [{name: c, volumeMounts: [" + mounts + "]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: o}}]"
		return labelLive{name: name, spec: spec, object: object, maxVolume: maxVolume, live: []string{"v"}, problems: problems}
	}
	for _, test := range []labelLive{
		{name: "one", spec: volumesNamed(1, "small"), live: []string{"v0"}},
		{name: "none", spec: "containers: [{name: c}]"},
		{name: "a token", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}, {configMap: {name: small}}]}}]"},
		{name: "is live already", spec: "containers: [{name: c, volumeMounts: [{name: refvol-v, mountPath: /v}]}]\nvolumes: [{name: v, configMap: {name: small}}, {name: refvol-v, csi: {driver: csi.refvol.dev, readOnly: true, volumeAttributes: {volume: v}}}]"},
		{name: "subPath", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v, subPath: tls}]}]\nvolumes: [{name: v, secret: {secretName: s}}]", native: []string{"v"}},
		{name: "at a key", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}, {name: e, mountPath: /v/tls}]}]\nvolumes: [{name: e, emptyDir: {}}, {name: v, configMap: {name: small}}]", live: []string{"v"}, problems: []string{"volume v: "}},
		{name: "many keys", spec: volumesNamed(1, "many"), live: []string{"v0"}, problems: []string{"volume v0: has 8193 keys, more than 8192 (--max-volume-size)"}},
		{name: "large", spec: volumesNamed(1, "half"), live: []string{"v0"}},
		{name: "large together", spec: volumesNamed(4, "half"), live: []string{"v0", "v1", "v2", "v3"}, problems: []string{"the files of its live volumes take 98328 KiB, more than a pod's share of --max-total-size, by default 65536 KiB"}},
		{name: "many objects", spec: manyLarge, live: manyNames, problems: []string{"the objects of its live volumes take 33811 KiB, more than a pod's share of --max-cached-size, by default 32768 KiB"}},
		{name: "not to be read", spec: "containers: [{name: c, volumeMounts: [{name: v, mountPath: /v}]}]\nvolumes: [{name: v, secret: {secretName: hidden}}]", live: []string{"v"}, unread: []string{`Secret "ns/hidden"`}},
		limit("two pages", sized(1, 2*page), "", 2*page),
		limit("a page for each key", sized(2, page), "", 2*page),
		limit("a byte more than two pages", sized(1, 2*page+1), "", 2*page, "volume v: its files take 12 KiB, more than 8 KiB (--max-volume-size)"),
		limit("three keys for two pages", sized(3, 0), "", 2*page, "volume v: has 3 keys, more than 2 (--max-volume-size)"),
		limit("all of the cache", cached(podObjects), "", podObjects),
		limit("more than the cache", cached(podObjects+1), "", podObjects, cache),
		limit("all of the pod's files", twoKeys, "", podFiles, cache),
		limit("more than the pod's files", over, "", podFiles, "the files of its live volumes take ", cache),
		limit("a mount at one of the most keys", sized(mostItems, 0), "key-7", 0, "volume v: "),
		limit("a mount at one of more keys", sized(mostItems+1, 0), "key-7", 0, "volume v: has 8193 keys"),
	} {
		objects[`ConfigMap "ns/o"`] = test.object
		opts := (&fakeAdmission{t: t, admit: live}).options(LiveLabel, podOf(t, "p", test.spec))
		opts.MaxVolumeSize = cmp.Or(test.maxVolume, opts.MaxVolumeSize)
		got := labelled(t, objects, opts).Pods[0]
		if !slices.Equal(got.Changed, test.live) || !slices.Equal(got.Stays, test.native) || !slices.Equal(got.Unread, test.unread) {
			t.Errorf("%s: live %q, native %q, unread %q", test.name, got.Changed, got.Stays, got.Unread)
		}
		if !slices.EqualFunc(got.Problems, test.problems, strings.HasPrefix) {
			t.Errorf("%s: problems %q, want %q", test.name, got.Problems, test.problems)
		}
	}
}

// TestLabelOwnVolumes: the policy can't count what a pod's own volumes of the driver name.
func TestLabelOwnVolumes(t *testing.T) {
	p := podOf(t, "p", volumesNamed(30, "small"))
	for i := range 5 {
		var own strings.Builder
		for j := range 200 {
			fmt.Fprintf(&own, "- configMap: {path: p, name: o%d-%d}\n", i, j)
		}
		p.Spec.Volumes = append(p.Spec.Volumes, driven(fmt.Sprint("own", i), map[string]string{"sources": own.String()}))
	}
	report := labelled(t, nil, (&fakeAdmission{t: t, admit: live}).options(LiveLabel, p))
	if got := report.Pods[0].Problems; len(got) != 1 || !strings.Contains(got[0], "name 1030 ConfigMaps and Secrets, more than 1024") {
		t.Errorf("problems %q", got)
	}
	// A limit that the pod exceeds already is not because of the label.
	for i := range 25 {
		p.Spec.Volumes = append(p.Spec.Volumes, driven(fmt.Sprint("more", i), map[string]string{"configMap": "o"}))
	}
	p.Spec.Containers[0].VolumeMounts = nil
	over := labelled(t, nil, (&fakeAdmission{t: t, admit: live}).options(LiveLabel, p))
	if got := over.Pods[0].Problems; len(got) > 0 {
		t.Errorf("problems %q", got)
	}
}

// fakeAdmission is an API server with a test's policies, and keeps the pods that it was sent.
type fakeAdmission struct {
	t      *testing.T
	admit  func(p *corev1.Pod) error // changes a pod, or refuses it
	policy error                     // the answer to a question about a policy
	sent   []*corev1.Pod
	asked  []string // the names of policies
}

// Create refuses what would create a pod, and what is no new pod.
func (a *fakeAdmission) Create(_ context.Context, p *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error) {
	if !slices.Equal(opts.DryRun, []string{metav1.DryRunAll}) {
		a.t.Errorf("pod %s is created, and not as a dry run", p.GenerateName)
	}
	a.sent = append(a.sent, p.DeepCopy())
	p = p.DeepCopy()
	if a.admit != nil {
		if err := a.admit(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (a *fakeAdmission) Get(_ context.Context, name string, _ metav1.GetOptions) (*admissionregistrationv1.MutatingAdmissionPolicy, error) {
	a.asked = append(a.asked, name)
	return &admissionregistrationv1.MutatingAdmissionPolicy{}, a.policy
}

func (a *fakeAdmission) options(label string, pods ...corev1.Pod) LabelOptions {
	return LabelOptions{Label: label, Namespace: "ns", Pods: pods, Creator: a, Policies: a, MaxVolumeSize: MaxVolumeSize}
}

// live makes native volumes of a pod live that a container mounts as a whole, as deploy/components/live does.
func live(p *corev1.Pod) error {
	if p.Labels[LiveLabel] != isOn {
		return nil
	}
	for _, v := range slices.Clone(p.Spec.Volumes) {
		name, moves := "refvol-"+v.Name, false
		for i := range p.Spec.Containers {
			for j := range p.Spec.Containers[i].VolumeMounts {
				if m := &p.Spec.Containers[i].VolumeMounts[j]; isNative(&v) && m.Name == v.Name && m.SubPath == "" {
					m.Name, moves = name, true
				}
			}
		}
		if moves {
			p.Spec.Volumes = append(p.Spec.Volumes, driven(name, map[string]string{"volume": v.Name}))
		}
	}
	return nil
}

func restart(follows ...string) func(p *corev1.Pod) error {
	return func(p *corev1.Pod) error {
		if p.Labels[RestartLabel] != isOn {
			return nil
		}
		sidecar := corev1.Container{Name: notifyProgram, VolumeMounts: []corev1.VolumeMount{{Name: notifyState}}}
		for _, name := range follows {
			sidecar.VolumeMounts = append(sidecar.VolumeMounts, corev1.VolumeMount{Name: name})
		}
		p.Spec.InitContainers = append([]corev1.Container{sidecar}, p.Spec.InitContainers...)
		return nil
	}
}

func driven(name string, attributes map[string]string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: driver, ReadOnly: new(true), VolumeAttributes: attributes,
	}}}
}

func forbidden(why error) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", why)
}

func labelled(t *testing.T, objects map[string]Object, opts LabelOptions) *LabelReport {
	t.Helper()
	return must.Get(newChecker(t, Options{Cluster: &fakeCluster{objects: objects}}).Label(t.Context(), opts))(t)
}

// TestIsNative: a volume with anything but ConfigMaps and Secrets stays the kubelet's.
func TestIsNative(t *testing.T) {
	configMap, secret, token := corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{}}, corev1.VolumeProjection{Secret: &corev1.SecretProjection{}}, corev1.VolumeProjection{}
	projected := func(all ...corev1.VolumeProjection) corev1.VolumeSource {
		return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: all}}
	}
	for want, sources := range map[bool][]corev1.VolumeSource{
		true:  {{ConfigMap: &corev1.ConfigMapVolumeSource{}}, {Secret: &corev1.SecretVolumeSource{}}, projected(configMap, secret)},
		false: {{EmptyDir: &corev1.EmptyDirVolumeSource{}}, projected(), projected(configMap, token)},
	} {
		for i, source := range sources {
			if isNative(&corev1.Volume{VolumeSource: source}) != want {
				t.Errorf("source %d, want %t", i, want)
			}
		}
	}
}
