package manifests

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/volume"
)

type nothingKnown struct{}

func (nothingKnown) Lookup(context.Context, volume.Ref) (check.Object, error) {
	return check.Object{Exists: check.Unknown}, nil
}

func (nothingKnown) CanI(context.Context, volume.ServiceAccount, volume.Ref, string) (check.Answer, error) {
	return check.Unknown, nil
}

func (nothingKnown) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }

type liveTests struct {
	s              labels
	cases, atLimit []liveCase
	before         map[string]*corev1.Pod
}

func newLiveTests(t *testing.T, s labels) *liveTests {
	t.Helper()
	l := &liveTests{s: s, cases: liveCases(s), atLimit: append(limitCases(), podLimitCases()...), before: map[string]*corev1.Pod{}}
	for _, c := range slices.Concat(l.cases, l.atLimit) {
		l.before[c.name] = s.before(t, cmp.Or(c.namespace, s.live), c.pod, c.says...)
	}
	return l
}

func (l *liveTests) run(t *testing.T) {
	unknown := unjudged(t)
	for _, c := range l.atLimit {
		t.Run(c.name, func(t *testing.T) { l.try(t, c) })
	}
	if got := unjudged(t); got != unknown { // a pod that can't be judged stays native, too
		t.Errorf("at the limits the metric counts %v pods that could not be judged, want %v", got, unknown)
	}
	for _, c := range l.cases {
		t.Run(c.name, func(t *testing.T) {
			l.try(t, c)
			if c.namespace == "" && c.says == nil { // check is about pods that run in namespaces that may get the label
				l.checkSaysSo(t, c)
			}
		})
	}
	unknown = unjudged(t)
	dear := must(createdIn(t.Context(), l.s.live, crossed(100, 100)))(t)
	if got, name := unjudged(t), dear.Spec.Containers[0].VolumeMounts[0].Name; got != unknown+1 || name != "v0" {
		t.Errorf("the metric counts %v pods that could not be judged, want %v; 100 containers with 100 volumes mount %s", got, unknown+1, name)
	}
}

func (l *liveTests) try(t *testing.T, c liveCase) {
	t.Helper()
	got, err := createdIn(t.Context(), cmp.Or(c.namespace, l.s.live), c.pod.DeepCopy())
	if wantRefusal(t, err, c.says...); err != nil || c.says != nil {
		return
	}
	c.move(l.before[c.name])
	wantEqual(t, got, l.before[c.name])
}

// checkSaysSo: what `kubectl refvol check --label=live` says of a namespace without the label is what the policy does in one that has it.
func (l *liveTests) checkSaysSo(t *testing.T, c liveCase) {
	t.Helper()
	checker := must(check.New(check.Options{Driver: harness.DriverName, Namespace: l.s.plain, Cluster: nothingKnown{}}))(t)
	pod := c.pod.DeepCopy()
	pod.Namespace = l.s.plain
	report, err := checker.Label(t.Context(), check.LabelOptions{
		Label: check.LiveLabel, Namespace: l.s.plain, MaxVolumeSize: check.MaxVolumeSize, Pods: []corev1.Pod{*pod},
		Creator: shared.Client().CoreV1().Pods(l.s.plain), Policies: shared.Client().AdmissionregistrationV1().MutatingAdmissionPolicies(),
	})
	if err != nil || len(report.Pods) == 0 && pod.Annotations[corev1.MirrorPodAnnotationKey] == "" {
		t.Fatalf("check: %v", err)
	}
	for _, one := range report.Pods {
		live := slices.Sorted(slices.Values(one.Changed))
		if want := slices.Sorted(maps.Keys(c.moves)); !slices.Equal(live, want) || one.NotKnown != "" {
			t.Errorf("check says that %q become live, and the policy has %q: %+v", live, want, one)
		}
	}
}

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

// needDriver: without the CSIDriver object pods stay native.
func (s labels) needDriver(t *testing.T) {
	driver := filepath.Join(shared.deploy, "base", "csidriver.yaml")
	mustKubectl(t, "delete", "--filename="+driver)
	s.awaitMount(t, "a")
	mustKubectl(t, "apply", "--filename="+driver)
	s.awaitMount(t, "refvol-a")
}

func (s labels) awaitMount(t *testing.T, volume string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		pod, err := createdIn(t.Context(), s.live, changed(liveAtOnce(), func(pod *corev1.Pod) { pod.Name = "new" }))
		if err == nil && pod.Spec.Containers[0].VolumeMounts[0].Name != volume {
			err = fmt.Errorf("the pod mounts %s, want %s", pod.Spec.Containers[0].VolumeMounts[0].Name, volume)
		}
		return err
	})
}

// unjudged returns what docs/live-namespaces.md says of the API server's metric: how many pods the policy could not judge.
func unjudged(t *testing.T) (pods int) {
	t.Helper()
	text := must(shared.Client().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_mutating_admission_policy_check_total{") && strings.Contains(line, `policy="refvol-live",`) &&
			!strings.Contains(line, `error_type="no_error",`) {
			value := must(strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):])))(t)
			pods += value
		}
	}
	return pods
}
