package manifests

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// liveManifest is a pod as a user would write and apply it.
const liveManifest = `apiVersion: v1
kind: Pod
metadata: {name: app, labels: {version: "1"}, annotations: {backup.velero.io/backup-volumes-excludes: e}}
spec:
  initContainers:
  - {name: i, image: localhost/none, volumeMounts: [{name: a, mountPath: /i}]}
  containers:
  - {name: c, image: localhost/none, volumeMounts: [{name: a, mountPath: /a}, {name: e, mountPath: /e}]}
  volumes:
  - {name: a, configMap: {name: app}}
  - {name: e, emptyDir: {}}
`

// appliedAgain applies a manifest twice, in each way that users have. What the API server says of a native pod the second time, it says of
// a live one, and the mounts stay.
func (s labels) appliedAgain(t *testing.T) {
	for _, way := range []string{"client", "server"} {
		for name, change := range map[string][2]string{
			"the same":     {},
			"an image":     {"localhost/none", "localhost/newer"},
			"another path": {"mountPath: /a", "mountPath: /b"},
			"a path twice": {"{name: e, mountPath: /e}", "{name: e, mountPath: /e}, {name: e, mountPath: /a}"},
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

func (s labels) applyTwice(t *testing.T, namespace, way, again string) applied {
	t.Helper()
	defer s.remove(t)
	args := []string{"apply", "--filename=-", "--namespace=" + namespace, fmt.Sprintf("--server-side=%t", way == "server")}
	apply := func(manifest string) error {
		_, err := shared.kubectlWith(t.Context(), []byte(manifest), args...)
		return err
	}
	get := func() *corev1.Pod {
		return must(shared.Client().CoreV1().Pods(namespace).Get(t.Context(), "app", metav1.GetOptions{}))(t)
	}
	var a applied
	fatal(t, apply(liveManifest))
	a.first = get()
	if err := apply(again); err != nil {
		_, a.said, _ = strings.Cut(strings.ReplaceAll(err.Error(), namespace, "NAMESPACE"), "exit status 1: ")
		a.said, _, _ = strings.Cut(a.said, "\n") // what follows is a difference, which has the volumes
	}
	a.second = get()
	return a
}

func wantSameMounts(t *testing.T, first, second *corev1.Pod) {
	t.Helper()
	if got, want := outline(second), outline(first); got != want {
		t.Errorf("the pod is\n%s\nwant\n%s", got, want)
	}
}

// updated: a manifest that mounts the native volumes, as one without a merge on the client writes it. Equal keys are refused.
func (s labels) updated(t *testing.T) {
	pods := shared.Client().CoreV1().Pods(s.live)
	var pod corev1.Pod
	fatal(t, yaml.UnmarshalStrict([]byte(liveManifest), &pod))
	first := must(pods.Create(t.Context(), &pod, metav1.CreateOptions{}))(t)
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
		debugged := must(pods.UpdateEphemeralContainers(t.Context(), with.Name, with, metav1.UpdateOptions{}))(t)
		if len(debugged.Spec.EphemeralContainers) != 1 {
			t.Errorf("it has %+v", debugged.Spec.EphemeralContainers)
		}
		wantSameMounts(t, first, debugged)
		for _, test := range updatesOfLivePods() {
			t.Run(test.name, func(t *testing.T) { wantRefusal(t, test.try(t, debugged), test.says...) })
		}
	})
}

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
