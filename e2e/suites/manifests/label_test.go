package manifests

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

const (
	liveLabel    = "refvol.dev/live"
	restartLabel = "refvol.dev/restart"
	// excludes is the annotation with the volumes that Velero's file-system backup leaves out.
	excludes = "backup.velero.io/backup-volumes-excludes"
)

// labels are the namespaces of a test: one with each label, and one without a label.
type labels struct{ live, restart, plain string }

// TestLabels has the API server make pods without the policies of both labels and with them: what differs is what each case says.
// To set the policies in force takes seconds, so all that is tested of them is here. What takes policies away again comes last.
func TestLabels(t *testing.T) {
	isFirst := unjudged(t) == 0
	on := func(label string) string { return ownNamespace(t, map[string]string{label: "true"}) }
	s := labels{live: on(liveLabel), restart: on(restartLabel), plain: ownNamespace(t, nil)}
	makeAccount(t, metav1.NamespaceSystem, s.live)
	earlier := must.Get(shared.Client().CoreV1().Pods(on(liveLabel)).Create(t.Context(), liveAtOnce(), metav1.CreateOptions{}))(t)
	atLimit, live := s.group(t, s.live, append(limitCases(), podLimitCases()...)), s.group(t, s.live, liveCases(s))
	restart := s.group(t, s.restart, restartCases(s))
	s.enforce(t)
	t.Run("live", func(t *testing.T) { s.runLive(t, atLimit, live) })
	t.Run("restart", restart.run)
	t.Run("restart and live", s.bothInAnyOrder)
	t.Run("Pod Security", s.underPodSecurity)
	t.Run("limits", s.withLimits)
	t.Run("check", s.checkRestart)
	t.Run("nodes with the plugin", s.selectNodes)
	t.Run("applied again", s.appliedAgain)
	t.Run("updated", s.updated)
	t.Run("values", s.restartValues)
	if isFirst { // an API server that has seen the policy go and come back doesn't hear that the object is gone
		t.Run("no driver", s.needDriver)
	}
	t.Run("running pods stay", func(t *testing.T) { s.runningStay(t, earlier) })
}

// labelCase is a pod. Nothing may differ of it, with the policies in force, but what the case says.
type labelCase struct {
	name string
	pod  *corev1.Pod
	// namespace is where the pod is made, if it isn't the one of the group.
	namespace string
	// says are in the API server's refusal.
	says []string
	// moves are the native volumes whose mounts move, with the live volume that each moves to.
	moves map[string]string
	// adds is what the sidecar has; nil for a pod that gets none.
	adds *added
}

// group is cases in a namespace, and what the API server made of their pods before.
type group struct {
	namespace string
	cases     []labelCase
	before    []*corev1.Pod
}

func (s labels) group(t *testing.T, namespace string, cases []labelCase) *group {
	t.Helper()
	g := &group{namespace: namespace, cases: cases}
	for _, c := range cases {
		g.before = append(g.before, s.before(t, cmp.Or(c.namespace, namespace), c.pod, c.says...))
	}
	return g
}

func (g *group) run(t *testing.T) {
	for i, c := range g.cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := createdIn(t.Context(), cmp.Or(c.namespace, g.namespace), c.pod.DeepCopy())
			if wantRefusal(t, err, c.says...); err != nil || c.says != nil {
				return
			}
			want := g.before[i]
			c.move(want)
			if c.adds != nil {
				wantAdded(t, got, c.adds)
				if want.Status.QOSClass == corev1.PodQOSGuaranteed && got.Status.QOSClass != want.Status.QOSClass {
					t.Errorf("the pod's class became %s", got.Status.QOSClass)
				}
				got.Status.QOSClass = want.Status.QOSClass // another one may become Burstable
				got = withoutSidecar(got, c.adds)
			}
			wantEqual(t, got, want)
		})
	}
}

// ownNamespace makes a namespace, which stays: the API server has no controller that could delete it.
func ownNamespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	made := must.Get(shared.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "refvol-own-", Labels: labels},
	}, metav1.CreateOptions{}))(t)
	makeAccount(t, made.Name, "default")
	return made.Name
}

func makeAccount(t *testing.T, namespace, name string) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must.Get(shared.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}))(t)
}

// before has the API server make the pod of a case while no policy is in force. Where no controller makes the default account, the
// pod gets another.
func (s labels) before(t *testing.T, namespace string, pod *corev1.Pod, says ...string) *corev1.Pod {
	t.Helper()
	accounts := map[string]string{metav1.NamespaceSystem: s.live, pluginNamespace: pluginAccount}
	pod.Spec.ServiceAccountName = cmp.Or(accounts[namespace], pod.Spec.ServiceAccountName)
	made, err := createdIn(t.Context(), namespace, pod.DeepCopy())
	if wantRefusal(t, err, says...); t.Failed() {
		t.FailNow()
	}
	return made
}

func liveAtOnce() *corev1.Pod { return mounting([]corev1.Volume{ofConfigMap("a")}, "a:/etc/a") }

// enforce installs both components until the end of the test, and waits until each of their policies and bindings is in force. The
// API server learns of each by itself.
func (s labels) enforce(t *testing.T) {
	t.Helper()
	install(t, "live", "restart")
	restarted := withEnv(secretKey("db", "password"))
	for _, by := range []struct {
		namespace string
		pod       *corev1.Pod
	}{
		{s.live, liveAtOnce()},
		{s.plain, withLabels(liveAtOnce(), liveLabel)},
		{s.restart, restarted},
		{s.plain, withLabels(restarted.DeepCopy(), restartLabel)},
	} {
		harness.Eventually(t, soon, func() error {
			got, err := createdIn(t.Context(), by.namespace, by.pod)
			if err == nil && len(got.Spec.InitContainers) == 0 && got.Spec.Containers[0].VolumeMounts[0].Name != "refvol-a" {
				err = fmt.Errorf("a pod in %s with the labels %v is not changed", by.namespace, by.pod.Labels)
			}
			return err
		})
	}
	pods := shared.Client().CoreV1().Pods(s.live)
	pod := must.Get(pods.Create(t.Context(), liveAtOnce(), metav1.CreateOptions{}))(t)
	defer s.remove(t)
	pod.Spec.Containers[0].VolumeMounts[0].Name = "a"
	harness.Eventually(t, soon, func() error {
		_, err := pods.Update(t.Context(), pod.DeepCopy(), metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

func (s labels) remove(t *testing.T) {
	t.Helper()
	for _, namespace := range []string{s.live, s.plain} {
		err := shared.Client().CoreV1().Pods(namespace).DeleteCollection(context.WithoutCancel(t.Context()),
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
	}
}

func withLabels(pod *corev1.Pod, names ...string) *corev1.Pod {
	pod.Labels = map[string]string{}
	for _, name := range names {
		pod.Labels[name] = "true"
	}
	return pod
}

// wantEqual compares two pods, but for the order of their volumes.
func wantEqual(t *testing.T, got, want *corev1.Pod) {
	t.Helper()
	for _, pod := range []*corev1.Pod{got, want} {
		slices.SortFunc(pod.Spec.Volumes, func(a, b corev1.Volume) int { return cmp.Compare(a.Name, b.Name) })
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the pod became\n%s\nwant\n%s", outline(got), outline(want))
	}
}

// outline is the beginning of what a policy may change of a pod.
func outline(pod *corev1.Pod) string {
	var all [2][]corev1.Container
	for i, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			all[i] = append(all[i], corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts, Env: c.Env, Ports: c.Ports})
		}
	}
	return asYAML(corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{excludes: pod.Annotations[excludes]}},
		Spec:       corev1.PodSpec{Volumes: pod.Spec.Volumes, InitContainers: all[0], Containers: all[1]},
	})
}

func asYAML(value any) string {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), 3<<10)])
}
