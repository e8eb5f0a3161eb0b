package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	livePolicy       = "refvol-live"
	liveUpdatePolicy = "refvol-live-update"
	liveLabel        = "refvol.dev/live"
	// excludes is the annotation with the volumes that Velero's file-system backup leaves out.
	excludes = "backup.velero.io/backup-volumes-excludes"
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

// inForce returns a function that waits until a policy changes a pod of its namespace, and one with its label in a plain namespace. In the end of
// the test it waits until neither is changed.
func inForce(t *testing.T, label, labelled, plain string, pod func() *corev1.Pod, isChanged func(*corev1.Pod) bool) (await func()) {
	t.Helper()
	wait := func(ctx context.Context, want bool) error {
		return harness.Poll(ctx, soon, pace, func() error {
			for _, namespace := range []string{labelled, plain} {
				pod := pod()
				if namespace == plain {
					pod.Labels = map[string]string{label: "true"}
				}
				got, err := createdIn(ctx, namespace, pod)
				if err == nil && isChanged(got) != want {
					err = fmt.Errorf("a pod in %s is changed because of %s: %t", namespace, label, !want)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	t.Cleanup(func() {
		if err := wait(context.WithoutCancel(t.Context()), false); err != nil {
			t.Error(err)
		}
	})
	return func() {
		t.Helper()
		if err := wait(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// liveAtOnce describes a pod that the policy changes, and isLive reports whether it has.
func liveAtOnce() *corev1.Pod { return mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a") }

func isLive(pod *corev1.Pod) bool { return pod.Spec.Containers[0].VolumeMounts[0].Name == "refvol-a" }

// enforce installs the component until the end of the test, and waits until each of its bindings is in force. In the
// end it waits until none is.
func (s liveSuite) enforce(t *testing.T, others ...string) {
	t.Helper()
	awaitLive := inForce(t, liveLabel, s.live, s.plain, liveAtOnce, isLive)
	install(t, append(others, "live")...)
	awaitLive()
	// The API server hears of the policy of updates by itself.
	pods, pod := shared.Client().CoreV1().Pods(s.live), liveAtOnce()
	pod.Name = "updated"
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pods.Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	}()
	pod.Spec.Containers[0].VolumeMounts[0].Name = "a"
	harness.Eventually(t, soon, func() error {
		_, err := pods.Update(t.Context(), pod.DeepCopy(), metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
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

// where is the namespace in which a case's pod is made.
func (c liveCase) where(s liveSuite) string { return cmp.Or(c.namespace, s.live) }

// wrong returns what is wrong with what becomes of the pod. Made without a policy it is before.
func (c liveCase) wrong(ctx context.Context, s liveSuite, before *corev1.Pod) error {
	got, err := createdIn(ctx, c.where(s), c.pod.DeepCopy())
	if c.says != "" {
		if err == nil || !strings.Contains(err.Error(), c.says) {
			return fmt.Errorf("got %w, want a refusal with %q", orNone(err), c.says)
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

// orNone is an error to say, also if there was none.
func orNone(err error) error { return cmp.Or(err, errors.New("no error")) }

// move makes of a pod what the policy should make of it.
func (c liveCase) move(pod *corev1.Pod) {
	c.exclude(pod)
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

// exclude has backups leave out the volumes to which mounts move, in the order of the native ones, after what is left out anyway.
func (c liveCase) exclude(pod *corev1.Pod) {
	names := strings.FieldsFunc(pod.Annotations[excludes], func(r rune) bool { return r == ',' })
	before := len(names)
	for _, v := range pod.Spec.Volumes {
		if name, ok := c.moves[v.Name]; ok && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) > before {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, excludes, strings.Join(names, ","))
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
	text, err := yaml.Marshal(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{excludes: pod.Annotations[excludes]}},
		Spec:       corev1.PodSpec{Volumes: pod.Spec.Volumes, InitContainers: all[0], Containers: all[1]},
	})
	if err != nil {
		return []byte(err.Error())
	}
	return text[:min(len(text), 3<<10)]
}

// before makes the pods of all cases that the API server takes, while no policy is in force.
func before(t *testing.T, s liveSuite, cases []liveCase) map[string]*corev1.Pod {
	t.Helper()
	accountIn := accounts(t, s.live)
	pods := map[string]*corev1.Pod{}
	for _, test := range cases {
		test.pod.Spec.ServiceAccountName = cmp.Or(accountIn[test.namespace], test.pod.Spec.ServiceAccountName)
		pod, err := createdIn(t.Context(), test.where(s), withFewItems(test.pod))
		if test.says == "" {
			wantRefusal(t, err)
			copyItems(pod, test.pod)
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
	t.Run("the budget suffices at the limits", func(t *testing.T) {
		before := unjudged(t)
		for _, test := range podLimitCases() {
			if _, err := createdIn(t.Context(), s.live, test.pod); err != nil {
				t.Fatal(err)
			}
		}
		if got := unjudged(t); got != before { // a pod that can't be judged stays native, too
			t.Errorf("the metric counts %v pods that could not be judged, want %v", got, before)
		}
	})
	t.Run("the budget is counted", func(t *testing.T) {
		before, dear := unjudged(t), crossed(100, 100)
		if _, err := createdIn(t.Context(), s.live, dear); err != nil {
			t.Fatal(err)
		}
		if got := unjudged(t); got != before+1 {
			t.Errorf("the metric counts %v pods that could not be judged, want %v", got, before+1)
		}
	})
}

// TestLiveNamespacesNeedTheDriver: without the CSIDriver object pods stay native. It has an API server of its own: one that has seen
// the policy go and come back doesn't hear any more that the object is gone.
func TestLiveNamespacesNeedTheDriver(t *testing.T) {
	binaries, err := harness.BuildControlPlane(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(t.Context(), controlplane.Options{Binaries: binaries, APIServerArgs: []string{"--allow-privileged=true"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	kubectl := func(args ...string) {
		t.Helper()
		if _, err := shared.kubectl(t.Context(), append(args, "--kubeconfig="+c.Kubeconfig())...); err != nil {
			t.Fatal(err)
		}
	}
	driver := filepath.Join(shared.deploy, "base", "csidriver.yaml")
	kubectl("apply", "--kustomize="+kustomization(t, "live"))
	kubectl("create", "namespace", "shop")
	kubectl("label", "namespace", "shop", liveLabel+"=true")
	kubectl("create", "serviceaccount", "default", "--namespace=shop")
	mounts := func(volume string) func() error {
		return func() error {
			pod, err := c.Client().CoreV1().Pods("shop").Create(t.Context(), mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), dryRun())
			if err == nil && pod.Spec.Containers[0].VolumeMounts[0].Name != volume {
				err = fmt.Errorf("the pod mounts %s, want %s", pod.Spec.Containers[0].VolumeMounts[0].Name, volume)
			}
			return err
		}
	}
	harness.Eventually(t, soon, mounts("refvol-a"))
	kubectl("delete", "--filename="+driver)
	harness.Eventually(t, soon, mounts("a"))
	kubectl("apply", "--filename="+driver)
	harness.Eventually(t, soon, mounts("refvol-a"))
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
