package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// liveManifest is a pod as a user would write and apply it.
const liveManifest = `apiVersion: v1
kind: Pod
metadata: {name: app, labels: {version: "1"}, annotations: {backup.velero.io/backup-volumes-excludes: e}}
spec:
  nodeSelector: {disk: ssd}
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
				_, _, ofNative := s.applyTwice(t, s.plain, way, again)
				first, second, said := s.applyTwice(t, s.live, way, again)
				if said != ofNative {
					t.Errorf("of a live pod the API server says %q, of a native one %q", said, ofNative)
				}
				if got := first.Spec.Containers[0].VolumeMounts[0].Name; got != "refvol-a" {
					t.Errorf("it mounts %s", got)
				}
				wantSameMounts(t, first, second)
			})
		}
	}
}

// applyTwice returns the pod after each time, and what the API server said the second time.
func (s labels) applyTwice(t *testing.T, namespace, way, again string) (first, second *corev1.Pod, said string) {
	t.Helper()
	defer s.remove(t)
	args := []string{"apply", "--filename=-", "--namespace=" + namespace, fmt.Sprintf("--server-side=%t", way == "server")}
	apply := func(manifest string) error {
		_, err := shared.kubectlWith(t.Context(), []byte(manifest), args...)
		return err
	}
	get := func() *corev1.Pod {
		return must.Get(shared.Client().CoreV1().Pods(namespace).Get(t.Context(), "app", metav1.GetOptions{}))(t)
	}
	must.Do(t, apply(liveManifest))
	first = get()
	if err := apply(again); err != nil {
		_, said, _ = strings.Cut(strings.ReplaceAll(err.Error(), namespace, "NAMESPACE"), "exit status 1: ")
		said, _, _ = strings.Cut(said, "\n") // what follows is a difference, which has the volumes
	}
	return first, get(), said
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
	must.Do(t, yaml.UnmarshalStrict([]byte(liveManifest), &pod))
	first := must.Get(pods.Create(t.Context(), &pod, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { s.remove(t) })
	for _, test := range updatesOfLivePods() {
		t.Run(test.name, func(t *testing.T) { wantRefusal(t, test.try(t, first), test.says...) })
	}
	// What one policy makes live, the other one can judge.
	for name, large := range map[string]*corev1.Pod{"50 containers with 100 volumes": crossed(50, 100), "all limits": atAllLimits()} {
		large.Name, large.GenerateName = "", "large-"
		live := must.Get(pods.Create(t.Context(), large, metav1.CreateOptions{}))(t)
		if err := updatesOfLivePods()[0].try(t, live); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	t.Run("an ephemeral container", func(t *testing.T) {
		with := changed(first.DeepCopy(), func(pod *corev1.Pod) {
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: "debug", Image: "localhost/none", VolumeMounts: mounts("refvol-a:/a", "e:/e"),
				ImagePullPolicy: corev1.PullNever, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
			}}}
		})
		debugged := must.Get(pods.UpdateEphemeralContainers(t.Context(), with.Name, with, metav1.UpdateOptions{}))(t)
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
				if native, isLive := strings.CutPrefix(c.VolumeMounts[i].Name, "refvol-"); isLive {
					c.VolumeMounts[i].Name, c.VolumeMounts[i].ReadOnly = native, false
				}
			}
		}
	}
	u.change(&pod.Spec)
	_, err := pods.Update(t.Context(), pod, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// runningStay: a pod that was there before the component, and one whose policies are gone.
func (s labels) runningStay(t *testing.T, old *corev1.Pod) {
	old.Labels = map[string]string{"changed": "yes"}
	got := must.Get(shared.Client().CoreV1().Pods(old.Namespace).Update(t.Context(), old, metav1.UpdateOptions{}))(t)
	wantSameMounts(t, old, got)

	t.Cleanup(func() { s.remove(t) })
	live := must.Get(shared.Client().CoreV1().Pods(s.live).Create(t.Context(), liveAtOnce(), metav1.CreateOptions{}))(t)
	wantUninstallCheck(t, "pod "+s.live+"/app on no node yet\n")
	for _, command := range documented(t, "live-namespaces.md", "delete mutatingadmissionpolicybinding") {
		mustKubectl(t, command...)
	}
	s.awaitMount(t, "a")
	nothing := updatesOfLivePods()[0]
	wantRefusal(t, nothing.try(t, live))
	mustKubectl(t, "delete", "mutatingadmissionpolicybinding", "refvol-live-update")
	harness.Eventually(t, soon, func() error {
		if err := nothing.try(t, live); !apierrors.IsInvalid(err) {
			return fmt.Errorf("without the policy for updates: %w", cmp.Or(err, errors.New("no error")))
		}
		return nil
	})
}

// TestUninstallCheckOfEndedPods: a pod that has ended counts while its node's plugin is not ready, as it may still have a mount. A tenant's
// pod is no plugin, whatever its labels say.
func TestUninstallCheckOfEndedPods(t *testing.T) {
	pod := func(namespace, name string, phase corev1.PodPhase, ready corev1.ConditionStatus, volumes ...corev1.Volume) {
		t.Helper()
		pod := podWith(name, volumes...)
		pod.Namespace, pod.UID, pod.CreationTimestamp, pod.Spec.NodeName = namespace, uuid.NewUUID(), metav1.Now(), "crashing"
		pod.Labels = map[string]string{"app.kubernetes.io/name": "refvol-plugin"}
		pod.Status.Phase, pod.Status.Conditions = phase, []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		must.Do(t, shared.PutPod(t.Context(), pod))
		t.Cleanup(func() {
			must.Do(t, shared.DeletePod(context.WithoutCancel(t.Context()), namespace, name))
		})
	}
	pod(pluginNamespace, "plugin", corev1.PodRunning, corev1.ConditionFalse)
	pod(consumer, "no-plugin", corev1.PodRunning, corev1.ConditionTrue)
	pod(consumer, "ended", corev1.PodSucceeded, corev1.ConditionFalse, inline(attributes{"configMap": "app"}))
	wantUninstallCheck(t, "pod "+consumer+"/ended on node crashing, which has ended, and may have mounts there\n")
}

// wantUninstallCheck wants `kubectl refvol uninstall-check` to list one pod.
func wantUninstallCheck(t *testing.T, pod string) {
	t.Helper()
	stdout, stderr, status := harness.Run(t, shared.refvol, "uninstall-check", "--kubeconfig="+shared.Kubeconfig())
	const says = "Error: uninstall-check: pods that use the driver csi.refvol.dev: 1: "
	if out := stdout + stderr; status != 1 || !strings.HasPrefix(out, pod+says) {
		t.Errorf("uninstall-check: status %d, it says %q, want %q", status, out, pod+says)
	}
}
