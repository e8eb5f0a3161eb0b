package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	livePolicy       = "refvol-live"
	liveUpdatePolicy = "refvol-live-update"
	liveLabel        = "refvol.dev/live"
)

// liveSuite has the namespaces of one test: one with the label, and one without it.
type liveSuite struct{ live, plain string }

// newLiveSuite makes the namespaces, which stay: the API server has no controller that could delete them.
func newLiveSuite(t *testing.T) liveSuite {
	t.Helper()
	return liveSuite{live: ownNamespace(t, map[string]string{liveLabel: "true"}), plain: ownNamespace(t, nil)}
}

func ownNamespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	made, err := shared.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "refvol-live-", Labels: labels},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := shared.Client().CoreV1().ServiceAccounts(made.Name).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return made.Name
}

// enforce installs the component until the end of the test, and waits until it is in force. In the end it waits
// until it no longer is.
func (s liveSuite) enforce(t *testing.T, others ...string) {
	t.Helper()
	isLive := func(ctx context.Context) (bool, error) {
		pod, err := createdIn(ctx, s.live, mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a"))
		return err == nil && pod.Spec.Containers[0].VolumeMounts[0].Name == "refvol-a", err
	}
	t.Cleanup(func() {
		err := harness.Poll(context.WithoutCancel(t.Context()), soon, pace, func() error {
			if live, err := isLive(context.WithoutCancel(t.Context())); live || err != nil {
				return fmt.Errorf("the policy that makes volumes live is in force still, or %w", cmp.Or(err, errors.ErrUnsupported))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	install(t, append(others, "live")...)
	harness.Eventually(t, soon, func() error {
		if live, err := isLive(t.Context()); !live || err != nil {
			return fmt.Errorf("the policy that makes volumes live is not in force: %w", cmp.Or(err, errors.ErrUnsupported))
		}
		return nil
	})
}

func ofConfigMap(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}},
	}}
}

func ofSecret(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: "db", Optional: new(true), DefaultMode: new(int32(0o400)), Items: []corev1.KeyToPath{{Key: "a", Path: "b/c", Mode: new(int32(0o440))}},
	}}}
}

func projecting(name string, more ...corev1.VolumeProjection) corev1.Volume {
	sources := append([]corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}},
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "db"}}},
	}, more...)
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

// empty is a volume that no policy concerns.
func empty(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// showing is a volume of the driver that shows one of the pod's.
func showing(name string, a attributes) corev1.Volume {
	v := inline(a)
	v.Name = name
	return v
}

// mounts reads volume:path:subPath.
func mounts(texts ...string) []corev1.VolumeMount {
	var all []corev1.VolumeMount
	for _, text := range texts {
		fields := append(strings.Split(text, ":"), "")
		all = append(all, corev1.VolumeMount{Name: fields[0], MountPath: fields[1], SubPath: fields[2]})
	}
	return all
}

// mounting is a pod whose one container mounts volumes.
func mounting(volumes []corev1.Volume, texts ...string) *corev1.Pod {
	return changed(podWith("app"), func(pod *corev1.Pod) {
		pod.Spec.Volumes, pod.Spec.Containers[0].VolumeMounts = volumes, mounts(texts...)
	})
}

func changed(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
	change(pod)
	return pod
}

func changedVolume(v corev1.Volume, change func(*corev1.CSIVolumeSource)) corev1.Volume {
	change(v.CSI)
	return v
}

func container(name string, texts ...string) corev1.Container {
	return corev1.Container{Name: name, Image: "localhost/none", VolumeMounts: mounts(texts...)}
}

// liveCase is a pod, and what becomes of it in a live namespace.
type liveCase struct {
	name string
	pod  *corev1.Pod
	// moves are the native volumes whose mounts move, with the live volume that each moves to. Nothing else may
	// differ from a pod in another namespace.
	moves map[string]string
	// namespace is where the pod is made, if it isn't the live namespace.
	namespace string
	// says is in the API server's refusal.
	says string
}

// liveCases are all cases. In a the pod mounts the native volume a.
func liveCases(s liveSuite) []liveCase {
	a := func() []corev1.Volume { return []corev1.Volume{ofConfigMap("a")} }
	simple := func(change func(*corev1.Pod)) *corev1.Pod { return changed(mounting(a(), "a:/etc/a"), change) }
	labelled := func(value string) *corev1.Pod {
		return simple(func(pod *corev1.Pod) { pod.Labels = map[string]string{liveLabel: value} })
	}
	toA := map[string]string{"a": "refvol-a"}
	long := strings.Repeat("n", 56)
	first, second := strings.Repeat("n", 50)+strings.Repeat("a", 13), strings.Repeat("n", 50)+strings.Repeat("b", 13)
	always := corev1.ContainerRestartPolicyAlways
	foreign := changedVolume(showing("foreign", attributes{"volume": "a"}), func(v *corev1.CSIVolumeSource) { v.Driver = "csi.example.com" })
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
	downward := []corev1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}
	return append([]liveCase{
		{name: "a ConfigMap", pod: mounting(a(), "a:/etc/a"), moves: toA},
		{name: "a Secret", pod: mounting([]corev1.Volume{ofSecret("a")}, "a:/etc/a"), moves: toA},
		{name: "a projected volume", pod: mounting([]corev1.Volume{projecting("a")}, "a:/etc/a"), moves: toA},
		{name: "three of four", pod: mounting([]corev1.Volume{ofConfigMap("a"), empty("e"), ofSecret("b"), projecting("c")},
			"a:/a", "e:/e", "b:/b", "c:/c"), moves: map[string]string{"a": "refvol-a", "b": "refvol-b", "c": "refvol-c"}},
		{name: "two paths", pod: mounting(a(), "a:/a", "a:/b"), moves: toA},
		{name: "all kinds of containers", pod: simple(func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("d", "a:/d"), container("e"))
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/i"), container("j"), container("k", "a:/k")}
			pod.Spec.InitContainers[2].RestartPolicy = &always
		}), moves: toA},
		{name: "an init container alone", pod: changed(mounting(a()), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/i")}
		}), moves: toA},
		{name: "fields of a mount", pod: simple(func(pod *corev1.Pod) {
			m := &pod.Spec.Containers[0].VolumeMounts[0]
			m.ReadOnly, m.RecursiveReadOnly = true, new(corev1.RecursiveReadOnlyIfPossible)
		}), moves: toA},
		{name: "a generated name", pod: simple(func(pod *corev1.Pod) { pod.Name, pod.GenerateName = "", "app-" }), moves: toA},
		{name: "equal variables and ports", pod: simple(func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, Name: "a"}, {ContainerPort: 80, Name: "b"}}
		}), moves: toA},

		{name: "another source, a token", pod: mounting([]corev1.Volume{projecting("a", token)}, "a:/a")},
		{name: "another source, the downward API", pod: mounting(
			[]corev1.Volume{projecting("a", corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: downward}})}, "a:/a")},
		{name: "a volume of the downward API", pod: mounting([]corev1.Volume{{Name: "a", VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: downward},
		}}}, "a:/a")},
		{name: "not mounted", pod: mounting(a())},
		{name: "subPath", pod: mounting(a(), "a:/etc/a/key:key")},
		{name: "subPathExpr", pod: simple(func(pod *corev1.Pod) {
			c := &pod.Spec.Containers[0]
			c.Env, c.VolumeMounts[0].SubPathExpr = []corev1.EnvVar{{Name: "A", Value: "key"}}, "$(A)"
		})},
		{name: "subPath, and as a whole in another container", pod: changed(mounting(a(), "a:/etc/a/key:key"), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/etc/a")}
		}), moves: toA},
		{name: "another driver", pod: mounting([]corev1.Volume{foreign}, "foreign:/a")},
		{name: "another driver beside", pod: mounting(append(a(), foreign), "foreign:/b", "a:/a"), moves: toA},
		{name: "Windows by its field", pod: simple(func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} })},
		{name: "Windows by the node selector", pod: simple(func(pod *corev1.Pod) {
			pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"}
		})},
		{name: "Linux by both", pod: simple(func(pod *corev1.Pod) {
			pod.Spec.OS, pod.Spec.NodeSelector = &corev1.PodOS{Name: corev1.Linux}, map[string]string{corev1.LabelOSStable: "linux"}
		}), moves: toA},
		{name: "the label false", pod: labelled("false")},
		{name: "the annotation false", pod: simple(func(pod *corev1.Pod) { pod.Annotations = map[string]string{liveLabel: "false"} })},
		{name: "the label true too", pod: labelled("true"), moves: toA},
		{name: "the label true, in another namespace", namespace: s.plain, pod: labelled("true"), moves: toA},
		{name: "another namespace", namespace: s.plain, pod: mounting(a(), "a:/etc/a")},
		{name: "kube-system", namespace: metav1.NamespaceSystem, pod: labelled("true")},
		{name: "the plugin's namespace", namespace: pluginNamespace, pod: labelled("true")},

		{name: "a mirror pod", pod: simple(func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			pod.Spec.NodeName, pod.Spec.AutomountServiceAccountToken = "node", new(false)
		})},

		{name: "56 characters", pod: mounting([]corev1.Volume{ofConfigMap(long)}, long+":/a"), moves: map[string]string{long: "refvol-" + long}},
		{name: "57 characters", pod: mounting([]corev1.Volume{ofConfigMap(long + "n")}, long+"n:/a"),
			moves: map[string]string{long + "n": "refvol--" + strings.Repeat("n", 50) + "-0"}},
		{name: "63 characters that begin alike", pod: mounting([]corev1.Volume{ofConfigMap(first), ofSecret(second)}, first+":/a", second+":/b"),
			moves: map[string]string{first: "refvol--" + strings.Repeat("n", 50) + "-0", second: "refvol--" + strings.Repeat("n", 50) + "-1"}},
		{name: "a name that is taken", pod: mounting([]corev1.Volume{empty("refvol-a"), ofConfigMap("a")}, "refvol-a:/e", "a:/a"),
			moves: map[string]string{"a": "refvol--a-1"}},
		{name: "a name that another native volume has", pod: mounting([]corev1.Volume{ofConfigMap("a"), ofConfigMap("refvol-a")}, "refvol-a:/e", "a:/a"),
			moves: map[string]string{"a": "refvol--a-0", "refvol-a": "refvol-refvol-a"}},
		{name: "the author's own live volume", pod: mounting(append(a(), showing("mine", attributes{"volume": "a"})), "mine:/mine", "a:/a"), moves: toA},
		{name: "the author's own live volume alone", pod: mounting(append(a(), showing("mine", attributes{"volume": "a"})), "mine:/mine")},
		{name: "the author's own with the name of ours", pod: mounting(append(a(), showing("refvol-a", attributes{"volume": "a"})), "refvol-a:/mine", "a:/a"), moves: toA},
		{name: "the author's own with the name of ours, and more", pod: mounting(
			append(a(), showing("refvol-a", attributes{"volume": "a", "defaultMode": "0400"})), "refvol-a:/mine", "a:/a"),
			moves: map[string]string{"a": "refvol--a-0"}},
		{name: "another driver's with the name of ours", pod: mounting(append(a(), changedVolume(showing("refvol-a", attributes{"volume": "a"}),
			func(v *corev1.CSIVolumeSource) { v.Driver = "csi.example.com" })), "refvol-a:/mine", "a:/a"), moves: map[string]string{"a": "refvol--a-0"}},
		{name: "the author's own with the name of ours, writable", pod: mounting(append(a(), changedVolume(showing("refvol-a", attributes{"volume": "a"}),
			func(v *corev1.CSIVolumeSource) { v.ReadOnly = nil })), "refvol-a:/mine", "a:/a"), moves: map[string]string{"a": "refvol--a-0"}},
		{name: "both names taken", pod: mounting([]corev1.Volume{ofConfigMap("a"), empty("refvol-a"), empty("refvol--a-0")}, "a:/a")},
		{name: "50 containers with 100 volumes", pod: crossed(50, 100), moves: crossedMoves(100)},
		{name: "100 containers with 100 volumes at 100 paths", pod: crossed(100, 100, "", "-b")},
	}, equalKeys()...)
}

// equalKeys are pods that the API server refuses. If two of the keys were made one, it would take the pod.
func equalKeys() []liveCase {
	a := func(texts ...string) *corev1.Pod {
		return mounting([]corev1.Volume{ofConfigMap("a"), empty("e")}, texts...)
	}
	const unique, duplicate = "must be unique", "Duplicate value"
	return []liveCase{
		{name: "a path with one volume twice", pod: a("a:/a", "a:/a"), says: unique},
		{name: "a path with two volumes", pod: a("a:/a", "e:/a"), says: unique},
		{name: "a path with two volumes, the live one last", pod: a("e:/a", "a:/a"), says: unique},
		{name: "a path with two volumes in an init container", pod: changed(a("a:/a"), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/i", "e:/i")}
		}), says: unique},
		{name: "two containers of one name", pod: changed(a("a:/a"), func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, container("c", "e:/b"))
		}), says: duplicate},
		{name: "two init containers of one name", pod: changed(a("a:/a"), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/i"), container("i", "e:/j")}
		}), says: duplicate},
		{name: "a container and an init container of one name", pod: changed(a("a:/a"), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("c", "a:/i")}
		}), says: duplicate},
		{name: "two native volumes of one name", pod: mounting([]corev1.Volume{ofConfigMap("a"), ofSecret("a")}, "a:/a"), says: duplicate},
		{name: "two other volumes of one name", pod: mounting([]corev1.Volume{ofConfigMap("a"), empty("e"), empty("e")}, "a:/a"), says: duplicate},
	}
}

// crossed is a pod of which each container mounts each volume, at a path with each of the endings.
func crossed(containers, volumes int, endings ...string) *corev1.Pod {
	if len(endings) == 0 {
		endings = []string{""}
	}
	pod := podWith("app")
	pod.Spec.Containers = nil
	var all []string
	for i := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, ofConfigMap(fmt.Sprintf("v%d", i)))
		for _, ending := range endings {
			all = append(all, fmt.Sprintf("v%d:/etc/v%d%s", i, i, ending))
		}
	}
	for i := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprintf("c%d", i), all...))
	}
	return pod
}

func crossedMoves(volumes int) map[string]string {
	moves := map[string]string{}
	for i := range volumes {
		moves[fmt.Sprintf("v%d", i)] = fmt.Sprintf("refvol-v%d", i)
	}
	return moves
}

// where is the namespace in which a case's pod is made.
func (c liveCase) where(s liveSuite) string { return cmp.Or(c.namespace, s.live) }

// wrong returns what is wrong with what becomes of the pod. Made without a policy it is before.
func (c liveCase) wrong(ctx context.Context, s liveSuite, before *corev1.Pod) error {
	got, err := createdIn(ctx, c.where(s), c.pod.DeepCopy())
	if c.says != "" {
		if err == nil || !strings.Contains(err.Error(), c.says) {
			return fmt.Errorf("got %w, want a refusal with %q", cmp.Or(err, errors.New("no error")), c.says)
		}
		return nil
	}
	if err != nil {
		return err
	}
	want := before.DeepCopy()
	c.move(want)
	for _, pod := range []*corev1.Pod{got, want} {
		slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the pod became\n%s\nwant\n%s", outline(got), outline(want))
	}
	return nil
}

// move makes of a pod what the policy should make of it.
func (c liveCase) move(pod *corev1.Pod) {
	for _, native := range slices.Sorted(maps.Keys(c.moves)) {
		name := c.moves[native]
		if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name }) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, showing(name, attributes{"volume": native}))
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, container := range containers {
			for i := range container.VolumeMounts {
				if name, ok := c.moves[container.VolumeMounts[i].Name]; ok {
					container.VolumeMounts[i].Name, container.VolumeMounts[i].ReadOnly = name, true
				}
			}
		}
	}
}

// outline is the beginning of what a policy may change of a pod.
func outline(pod *corev1.Pod) []byte {
	var all [2][]corev1.Container
	for i, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			all[i] = append(all[i], corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts, Env: c.Env, Ports: c.Ports})
		}
	}
	text, err := yaml.Marshal(corev1.PodSpec{Volumes: pod.Spec.Volumes, InitContainers: all[0], Containers: all[1]})
	if err != nil {
		return []byte(err.Error())
	}
	return text[:min(len(text), 3<<10)]
}

// before makes the pods of all cases that the API server takes, while no policy is in force.
func before(t *testing.T, s liveSuite, cases []liveCase) map[string]*corev1.Pod {
	t.Helper()
	accounts := shared.Client().CoreV1().ServiceAccounts(metav1.NamespaceSystem)
	// Pods of kube-system have this account, as no controller makes one there.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: s.live}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := accounts.Delete(context.WithoutCancel(t.Context()), s.live, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	pods := map[string]*corev1.Pod{}
	for i, test := range cases {
		switch test.namespace {
		case metav1.NamespaceSystem:
			cases[i].pod.Spec.ServiceAccountName = s.live
		case pluginNamespace:
			cases[i].pod.Spec.ServiceAccountName = pluginAccount
		}
		pod, err := createdIn(t.Context(), test.where(s), test.pod.DeepCopy())
		if test.says == "" {
			wantRefusal(t, err)
		} else {
			wantRefusal(t, err, test.says)
		}
		pods[test.name] = pod
	}
	return pods
}

// TestLiveNamespaces has the API server make pods without the component and with it: what differs is what each
// case says.
func TestLiveNamespaces(t *testing.T) {
	s := newLiveSuite(t)
	cases := liveCases(s)
	pods := before(t, s, cases)
	s.enforce(t)
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			if err := test.wrong(t.Context(), s, pods[test.name]); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("the budget is counted", func(t *testing.T) {
		before, dear := unjudged(t), crossed(100, 100, "", "-b")
		if _, err := createdIn(t.Context(), s.live, dear); err != nil {
			t.Fatal(err)
		}
		if got := unjudged(t); got != before+1 {
			t.Errorf("the metric counts %v pods that could not be judged, want %v", got, before+1)
		}
	})
	t.Run("without the driver", func(t *testing.T) {
		drivers := shared.Client().StorageV1().CSIDrivers()
		driver, err := drivers.Get(t.Context(), harness.DriverName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := drivers.Delete(t.Context(), driver.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		native := liveCase{pod: mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a")}
		harness.Eventually(t, soon, func() error { return native.wrong(t.Context(), s, pods["a ConfigMap"]) })
		counted := checked(t)
		if err := native.wrong(t.Context(), s, pods["a ConfigMap"]); err != nil {
			t.Error(err)
		}
		if got := checked(t); got != counted {
			t.Errorf("the metric counts %d pods, want %d as before", got, counted)
		}
		driver = &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver.Name, Labels: driver.Labels}, Spec: driver.Spec}
		if _, err := drivers.Create(t.Context(), driver, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		live := cases[0]
		harness.Eventually(t, soon, func() error { return live.wrong(t.Context(), s, pods["a ConfigMap"]) })
	})
}

// unjudged returns what docs/live-namespaces.md says of the API server's metric: how many pods the policy could not judge.
func unjudged(t *testing.T) int {
	t.Helper()
	return checked(t) - sum(t, `error_type="no_error",policy="refvol-live",`)
}

// checked returns how many pods the metric counts in all.
func checked(t *testing.T) int {
	t.Helper()
	return sum(t, `policy="refvol-live",`)
}

// sum adds the values of the metric's samples with some labels.
func sum(t *testing.T, labels string) int {
	t.Helper()
	text, err := shared.Client().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_mutating_admission_policy_check_total{") && strings.Contains(line, labels) {
			value, err := strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):]))
			if err != nil {
				t.Fatal(err)
			}
			all += value
		}
	}
	return all
}

// breaks are changes of the policies, each with the cases that go wrong by it.
func breaks() []struct {
	policy, from, to string
	cases            []string
} {
	return []struct {
		policy, from, to string
		cases            []string
	}{
		{livePolicy, "object.metadata.?annotations[?'refvol.dev/live'].orValue('') != 'false'", "true", []string{"the annotation false"}},
		{livePolicy, "object.metadata.?labels[?'refvol.dev/live'].orValue('') != 'false'", "true", []string{"the label false"}},
		{livePolicy, "!object.metadata.?annotations[?'kubernetes.io/config.mirror'].hasValue()", "true", []string{"a mirror pod"}},
		{livePolicy, "object.spec.?os.?name.orValue('') != 'windows'", "true", []string{"Windows by its field"}},
		{livePolicy, "object.spec.?nodeSelector[?'kubernetes.io/os'].orValue('') != 'windows'", "true", []string{"Windows by the node selector"}},
		{livePolicy, "has(v.secret)", "false", []string{"a Secret", "three of four"}},
		{livePolicy, "has(v.configMap)", "false", []string{"a ConfigMap", "all kinds of containers", "an init container alone", "two paths"}},
		{livePolicy, "has(v.projected)", "false", []string{"a projected volume"}},
		{livePolicy, "m.?subPath.orValue('') == '' && ", "", []string{"subPath"}},
		{livePolicy, " && m.?subPathExpr.orValue('') == ''", "", []string{"subPathExpr"}},
		{livePolicy, ".all(s, has(s.configMap) || has(s.secret))", ".size() > 0", []string{"another source, a token", "another source, the downward API"}},
		{livePolicy, "(v.name in variables.whole ||", "(true ||", []string{"not mounted", "the author's own live volume alone"}},
		{livePolicy, "object.spec.?initContainers.orValue([]).map(c, c.?", "dyn([]).map(c, c.?", []string{"an init container alone", "subPath, and as a whole in another container"}},
		{livePolicy, "name.size() <= 63 && ", "", []string{"57 characters", "63 characters that begin alike"}},
		{livePolicy, " && !(name in variables.names)", "", []string{"a name that is taken", "a name that another native volume has"}},
		{livePolicy, "v.csi.driver == 'csi.refvol.dev'", "true", []string{"another driver's with the name of ours"}},
		{livePolicy, "v.name.startsWith('refvol-') && ", "", []string{"the author's own live volume"}},
		{livePolicy, "v.csi.?readOnly.orValue(false)", "true", []string{"the author's own with the name of ours, writable"}},
		{livePolicy, ".size() == 1 && 'volume' in", ".size() > 0 && 'volume' in", []string{"the author's own with the name of ours, and more"}},
		{livePolicy, "variables.containers[c.name].exists(path, variables.containers[c.name][path] in variables.live)",
			"c.?volumeMounts.orValue([]).exists(m, m.name in variables.live)",
			[]string{"a path with two volumes", "a path with two volumes, the live one last", "two containers of one name"}},
		{livePolicy, "variables.initContainers[c.name].exists(path, variables.initContainers[c.name][path] in variables.live)",
			"c.?volumeMounts.orValue([]).exists(m, m.name in variables.live)", []string{"a path with two volumes in an init container", "two init containers of one name"}},
		{livePolicy, "name: variables.live[m.name], readOnly: true", "name: variables.live[m.name]", []string{"a generated name", "two paths"}},
		{livePolicy, "object.spec.volumes.map(v, v.name)", "['refvol-a'] + object.spec.volumes.map(v, v.name)", []string{"the label true too"}},
		{liveUpdatePolicy, "c.name in variables.containers && ", "", []string{"a path with two volumes"}},
		{liveUpdatePolicy, "c.name in variables.initContainers && ", "", []string{"a path twice in an init container"}},
		{liveUpdatePolicy, "m.name == variables.shown", "'' != variables.shown", []string{"another volume"}},
		{liveUpdatePolicy, "m.name in variables.shown, ", "false, ", []string{"nothing", "an image"}},
	}
}

// TestLivePoliciesNeedEachPart breaks one part of a policy after the other: each time a case goes wrong.
func TestLivePoliciesNeedEachPart(t *testing.T) {
	s := newLiveSuite(t)
	all := liveCases(s)
	pods := before(t, s, all)
	s.enforce(t)
	policies := shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies()
	var manifest corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(liveManifest), &manifest); err != nil {
		t.Fatal(err)
	}
	live, err := shared.Client().CoreV1().Pods(s.live).Create(t.Context(), &manifest, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.remove(t) })
	goesWrong := func(policy, name string) error {
		if policy == liveUpdatePolicy {
			i := slices.IndexFunc(updatesOfLivePods(), func(u liveUpdate) bool { return u.name == name })
			update := updatesOfLivePods()[i]
			err := update.try(t, live)
			if (err == nil) != (update.says == nil) {
				return nil
			}
			return fmt.Errorf("of the update %q it still says %w", name, cmp.Or(err, errors.ErrUnsupported))
		}
		i := slices.IndexFunc(all, func(c liveCase) bool { return c.name == name })
		if all[i].wrong(t.Context(), s, pods[name]) == nil {
			return fmt.Errorf("the case %q is still right", name)
		}
		return nil
	}
	for _, test := range breaks() {
		t.Run(test.policy+" "+test.from, func(t *testing.T) {
			whole, err := policies.Get(t.Context(), test.policy, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			put := func(spec admissionv1.MutatingAdmissionPolicySpec) {
				now, err := policies.Get(t.Context(), test.policy, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				now.Spec = spec
				if _, err := policies.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			broken, found := whole.DeepCopy().Spec, false
			for _, text := range expressions(&broken) {
				found = found || strings.Contains(*text, test.from)
				*text = strings.ReplaceAll(*text, test.from, test.to)
			}
			if !found {
				t.Fatal("the policy has no such part")
			}
			put(broken)
			defer put(whole.Spec)
			for _, name := range test.cases {
				harness.Eventually(t, soon, func() error { return goesWrong(test.policy, name) })
			}
		})
	}
}

// expressions are all of a policy.
func expressions(spec *admissionv1.MutatingAdmissionPolicySpec) []*string {
	var all []*string
	for i := range spec.MatchConditions {
		all = append(all, &spec.MatchConditions[i].Expression)
	}
	for i := range spec.Variables {
		all = append(all, &spec.Variables[i].Expression)
	}
	for i := range spec.Mutations {
		all = append(all, &spec.Mutations[i].ApplyConfiguration.Expression)
	}
	return all
}

// TestRunningPodsStayAsTheyAre: a pod that was there before the component, and one whose policy for updates is gone.
func TestRunningPodsStayAsTheyAre(t *testing.T) {
	s := newLiveSuite(t)
	t.Cleanup(func() { s.remove(t) })
	pods := shared.Client().CoreV1().Pods(s.live)
	old, err := pods.Create(t.Context(), changed(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), func(pod *corev1.Pod) { pod.Name = "old" }),
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.enforce(t)
	old.Labels = map[string]string{"changed": "yes"}
	got, err := pods.Update(t.Context(), old, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantSameMounts(t, old, got)

	live := changed(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), func(pod *corev1.Pod) { pod.Name = "live" })
	if live, err = pods.Create(t.Context(), live, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const says = "pod %s/live on no node yet\nError: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out, err := uninstallCheck(t); err == nil || !strings.HasPrefix(out, fmt.Sprintf(says, s.live)) {
		t.Errorf("uninstall-check: %v, it says %q", err, out)
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding") {
		mustKubectl(t, command...)
	}
	native := liveCase{pod: mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a")}
	harness.Eventually(t, soon, func() error {
		pod, err := createdIn(t.Context(), s.live, native.pod.DeepCopy())
		if err == nil && pod.Spec.Containers[0].VolumeMounts[0].Name != "a" {
			err = errors.New("new pods are changed still")
		}
		return err
	})
	nothing := updatesOfLivePods()[0]
	wantRefusal(t, nothing.try(t, live))
	mustKubectl(t, "delete", "mutatingadmissionpolicybinding", liveUpdatePolicy)
	harness.Eventually(t, soon, func() error {
		if err := nothing.try(t, live); !apierrors.IsInvalid(err) {
			return fmt.Errorf("without the policy for updates: %w", cmp.Or(err, errors.ErrUnsupported))
		}
		return nil
	})
}

// TestHelmKeepsThePolicyForUpdates: what pods need that were changed stays, whether live namespaces are switched off or the
// release is uninstalled, and the release takes it again.
func TestHelmKeepsThePolicyForUpdates(t *testing.T) {
	h := newHelm(t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := h.run(ctx, "uninstall", "refvol", "--no-hooks", "--ignore-not-found")
		_, deleted := shared.kubectl(ctx, "delete", "--selector=app.kubernetes.io/name=refvol-plugin", kinds, "--all-namespaces")
		if err := errors.Join(err, deleted); err != nil {
			t.Error(err)
		}
	})
	const policy, binding = "mutatingadmissionpolicy.admissionregistration.k8s.io/", "mutatingadmissionpolicybinding.admissionregistration.k8s.io/"
	const kept = policy + "refvol-live-update\n" + binding + "refvol-live-update\n"
	const all = policy + "refvol-live\n" + policy + "refvol-live-update\n" +
		binding + "refvol-live-namespaces\n" + binding + "refvol-live-pods\n" + binding + "refvol-live-update\n"
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"install", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=false"}, kept},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"uninstall", "refvol", "--no-hooks"}, kept},
		{[]string{"install", "refvol", h.chart}, kept},
		{[]string{"upgrade", "refvol", h.chart, "--set=live.enabled=true"}, all},
		{[]string{"uninstall", "refvol", "--no-hooks"}, kept},
	} {
		h.must(t, step.args...)
		if got := ofRelease(t, "mutatingadmissionpolicies,mutatingadmissionpolicybindings"); got != step.want {
			t.Errorf("after %q there are\n%s\nwant\n%s", step.args, got, step.want)
		}
	}
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding,mutatingadmissionpolicy") {
		mustKubectl(t, command...)
	}
	h.wantNothingLeft(t)
}

// TestLiveNamespaceWithWebhook: a container that a webhook injects, after the policy has had its turn, is changed too, with
// the live volume that is there.
func TestLiveNamespaceWithWebhook(t *testing.T) {
	s := newLiveSuite(t)
	s.enforce(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionreviewv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kind := admissionreviewv1.PatchTypeJSONPatch
		review.Response = &admissionreviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &kind, Patch: []byte(`[
			{"op": "add", "path": "/spec/containers/-", "value": {"name": "injected", "image": "localhost/none",
				"volumeMounts": [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]}},
			{"op": "add", "path": "/spec/volumes/-", "value": {"name": "b", "secret": {"secretName": "db"}}}
		]`)}
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	hooks := shared.Client().AdmissionregistrationV1().MutatingWebhookConfigurations()
	none := admissionv1.SideEffectClassNone
	hook, err := hooks.Create(t.Context(), &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: s.live},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "inject.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			ClientConfig: admissionv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": s.live}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := hooks.Delete(context.WithoutCancel(t.Context()), hook.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	var pod *corev1.Pod
	harness.Eventually(t, soon, func() error {
		pod, err = createdIn(t.Context(), s.live, mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a"))
		if err == nil && len(pod.Spec.Containers) != 2 {
			err = errors.New("the webhook injects nothing yet")
		}
		return err
	})
	for i, want := range [][]string{{"refvol-a"}, {"refvol-a", "refvol-b"}} {
		for j, name := range want {
			if got := pod.Spec.Containers[i].VolumeMounts[j].Name; got != name {
				t.Errorf("container %d mounts %s, want %s", i, got, name)
			}
		}
	}
	if len(pod.Spec.Volumes) != 5 { // two native ones, two live ones, and the account's token
		t.Errorf("the pod is\n%s", outline(pod))
	}
}

// liveManifest is a pod as a user would write and apply it.
const liveManifest = `apiVersion: v1
kind: Pod
metadata: {name: app, labels: {version: "1"}}
spec:
  initContainers:
  - {name: i, image: localhost/none, volumeMounts: [{name: a, mountPath: /i}]}
  containers:
  - {name: c, image: localhost/none, volumeMounts: [{name: a, mountPath: /a}, {name: e, mountPath: /e}]}
  volumes:
  - {name: a, configMap: {name: app}}
  - {name: e, emptyDir: {}}
`

// TestLivePodsAreAppliedAgain applies a manifest twice, in each way that users have. What the API server says of a
// native pod the second time, it says of a live one, and the mounts stay.
func TestLivePodsAreAppliedAgain(t *testing.T) {
	s := newLiveSuite(t)
	s.enforce(t)
	for _, way := range []string{"client", "server"} {
		for name, change := range map[string][2]string{
			"the same":         {},
			"a label":          {`version: "1"`, `version: "2"`},
			"an image":         {"localhost/none", "localhost/newer"},
			"another path":     {"mountPath: /a", "mountPath: /b"},
			"another volume":   {"{name: a, mountPath: /a}", "{name: e, mountPath: /a}"},
			"a path twice":     {"{name: e, mountPath: /e}", "{name: e, mountPath: /e}, {name: e, mountPath: /a}"},
			"a container more": {"  volumes:\n", "  - {name: d, image: localhost/none}\n  volumes:\n"},
		} {
			t.Run(way+" "+name, func(t *testing.T) {
				again := strings.ReplaceAll(liveManifest, change[0], change[1])
				native, live := s.applyTwice(t, s.plain, way, again), s.applyTwice(t, s.live, way, again)
				if native.said != live.said {
					t.Errorf("of a live pod the API server says %q, of a native one %q", live.said, native.said)
				}
				if got := live.first.Spec.Containers[0].VolumeMounts[0].Name; got != "refvol-a" {
					t.Errorf("it mounts %s", got)
				}
				wantSameMounts(t, live.first, live.second)
			})
		}
	}
}

// applied is a pod that was applied twice, and what the API server said the second time.
type applied struct {
	first, second *corev1.Pod
	said          string
}

// applyTwice applies the manifest, then another one, and removes the pod.
func (s liveSuite) applyTwice(t *testing.T, namespace, way, again string) applied {
	t.Helper()
	defer s.remove(t)
	args := []string{"apply", "--filename=-", "--namespace=" + namespace, fmt.Sprintf("--server-side=%t", way == "server")}
	apply := func(manifest string) error {
		_, err := shared.kubectlWith(t.Context(), []byte(manifest), args...)
		return err
	}
	get := func() *corev1.Pod {
		pod, err := shared.Client().CoreV1().Pods(namespace).Get(t.Context(), "app", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	var a applied
	if err := apply(liveManifest); err != nil {
		t.Fatal(err)
	}
	a.first = get()
	if err := apply(again); err != nil {
		_, a.said, _ = strings.Cut(strings.ReplaceAll(err.Error(), namespace, "NAMESPACE"), "exit status 1: ")
		a.said, _, _ = strings.Cut(a.said, "\n") // what follows is a difference, which has the volumes
	}
	a.second = get()
	return a
}

// wantSameMounts wants two pods to have equal volumes and mounts.
func wantSameMounts(t *testing.T, first, second *corev1.Pod) {
	t.Helper()
	if got, want := outline(second), outline(first); string(got) != string(want) {
		t.Errorf("the pod is\n%s\nwant\n%s", got, want)
	}
}

// TestLivePodsAreUpdated: a manifest that mounts the native volumes, as one without a merge on the client writes it. Equal
// keys are refused.
func TestLivePodsAreUpdated(t *testing.T) {
	s := newLiveSuite(t)
	s.enforce(t)
	pods := shared.Client().CoreV1().Pods(s.live)
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(liveManifest), &pod); err != nil {
		t.Fatal(err)
	}
	first, err := pods.Create(t.Context(), &pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.remove(t) })
	for _, test := range updatesOfLivePods() {
		t.Run(test.name, func(t *testing.T) { wantRefusal(t, test.try(t, first), test.says...) })
	}
	t.Run("an ephemeral container", func(t *testing.T) {
		with := changed(first.DeepCopy(), func(pod *corev1.Pod) {
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", Image: "localhost/none", VolumeMounts: mounts("refvol-a:/a", "e:/e"),
				ImagePullPolicy: corev1.PullNever, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}}}
		})
		debugged, err := pods.UpdateEphemeralContainers(t.Context(), with.Name, with, metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(debugged.Spec.EphemeralContainers) != 1 {
			t.Errorf("it has %+v", debugged.Spec.EphemeralContainers)
		}
		wantSameMounts(t, first, debugged)
		for _, test := range updatesOfLivePods() {
			t.Run(test.name, func(t *testing.T) { wantRefusal(t, test.try(t, debugged), test.says...) })
		}
	})
}

// liveUpdate is an update of a live pod whose mounts are those of its manifest.
type liveUpdate struct {
	name   string
	change func(spec *corev1.PodSpec)
	says   []string
}

func updatesOfLivePods() []liveUpdate {
	const unique, duplicate, immutable = "must be unique", "Duplicate value", "pod updates may not change fields"
	mount := func(c *corev1.Container, text string) { c.VolumeMounts = append(c.VolumeMounts, mounts(text)...) }
	return []liveUpdate{
		{"nothing", func(*corev1.PodSpec) {}, nil},
		{"an image", func(s *corev1.PodSpec) { s.Containers[0].Image = "localhost/newer" }, nil},
		{"the live volume", func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts[0].Name, s.Containers[0].VolumeMounts[0].ReadOnly = "refvol-a", true
		}, nil},
		{"another volume", func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].Name = "e" }, []string{immutable}},
		{"another path", func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts[0].MountPath = "/b" }, []string{immutable}},
		{"no mount", func(s *corev1.PodSpec) { s.Containers[0].VolumeMounts = nil }, []string{immutable}},
		{"a path twice", func(s *corev1.PodSpec) { mount(&s.Containers[0], "a:/a") }, []string{unique}},
		{"a path with two volumes", func(s *corev1.PodSpec) { mount(&s.Containers[0], "e:/a") }, []string{unique}},
		{"a path twice in an init container", func(s *corev1.PodSpec) { mount(&s.InitContainers[0], "e:/i") }, []string{unique}},
		{"a path of another volume twice", func(s *corev1.PodSpec) { mount(&s.Containers[0], "a:/e") }, []string{unique}},
		{"two containers of one name", func(s *corev1.PodSpec) { s.Containers = append(s.Containers, s.Containers[0]) }, []string{duplicate}},
		{"two init containers of one name", func(s *corev1.PodSpec) { s.InitContainers = append(s.InitContainers, s.InitContainers[0]) }, []string{duplicate}},
	}
}

// try has the API server judge the update of a pod.
func (u liveUpdate) try(t *testing.T, pod *corev1.Pod) error {
	t.Helper()
	pods := shared.Client().CoreV1().Pods(pod.Namespace)
	pod = pod.DeepCopy()
	pod.ResourceVersion = ""
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for i := range c.VolumeMounts {
				if c.VolumeMounts[i].Name == "refvol-a" {
					c.VolumeMounts[i].Name, c.VolumeMounts[i].ReadOnly = "a", false
				}
			}
		}
	}
	u.change(&pod.Spec)
	_, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// remove deletes the pods of the test's namespaces.
func (s liveSuite) remove(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{s.live, s.plain} {
		err := shared.Client().CoreV1().Pods(namespace).DeleteCollection(context.WithoutCancel(t.Context()),
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
	}
}
