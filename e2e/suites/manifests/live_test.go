package manifests

import (
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
	"github.com/refvol/refvol/internal/must"
)

// runLive runs cases at limits, and others. It counts the pods that the policy could not judge.
func (s labels) runLive(t *testing.T, atLimit, others *group) {
	unknown := unjudged(t)
	atLimit.run(t)
	if got := unjudged(t); got != unknown { // a pod that can't be judged stays native, too
		t.Errorf("at the limits the metric counts %v pods that could not be judged, want %v", got, unknown)
	}
	others.run(t)
	unknown = unjudged(t)
	dear := must.Get(createdIn(t.Context(), s.live, crossed(100, 100)))(t)
	if got, name := unjudged(t), dear.Spec.Containers[0].VolumeMounts[0].Name; got != unknown+1 || name != "v0" {
		t.Errorf("the metric counts %v pods that could not be judged, want %v; 100 containers with 100 volumes mount %s", got, unknown+1, name)
	}
}

func (c labelCase) move(pod *corev1.Pod) {
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
func (c labelCase) exclude(pod *corev1.Pod) {
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
	text := must.Get(shared.Client().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "apiserver_mutating_admission_policy_check_total{") && strings.Contains(line, `policy="refvol-live",`) &&
			!strings.Contains(line, `error_type="no_error",`) {
			value := must.Get(strconv.Atoi(strings.TrimSpace(line[strings.LastIndex(line, " "):])))(t)
			pods += value
		}
	}
	return pods
}

// selectNodes: with one component more a pod that was made live has a node selector more, and no other pod has. What comes after
// this applies and updates pods that have it.
func (s labels) selectNodes(t *testing.T) {
	const key = "refvol.dev/plugin"
	mustKubectl(t, "apply", "--kustomize="+kustomization(t, "live", "live-node-selector", "restart"))
	native := func(patch string) *corev1.Pod {
		return merged(mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a"), patch)
	}
	with, both := map[string]string{key: "true"}, map[string]string{key: "true", "disk": "ssd"}
	cases := map[string]struct {
		namespace string
		pod       *corev1.Pod
		want      map[string]string
	}{
		"live":                                {s.live, native(""), with},
		"a selector of its own":               {s.live, native("spec: {nodeSelector: {disk: ssd}}"), both},
		"another value":                       {s.live, native("spec: {nodeSelector: {refvol.dev/plugin: 'no'}}"), map[string]string{key: "no"}},
		"no volume":                           {s.live, mounting(nil), nil},
		"subPath alone":                       {s.live, mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a:key"), nil},
		"the author's own":                    {s.live, mounting([]corev1.Volume{ofConfigMap("a"), showing("mine", attributes{"volume": "a"})}, "mine:/a"), nil},
		"the author's own with a native name": {s.live, podWith("own", showing("refvol-own", attributes{"configMap": "app"})), nil},
		"another namespace":                   {s.plain, native(""), nil},
		"a DaemonSet's":                       {s.live, native("metadata: {ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: d, uid: '1'}]}"), nil},
		"on a node":                           {s.live, native("spec: {nodeName: node}"), nil},
	}
	wrong := func(name string) error {
		c := cases[name]
		pod, err := createdIn(t.Context(), c.namespace, c.pod.DeepCopy())
		if err == nil && !maps.Equal(pod.Spec.NodeSelector, c.want) {
			err = fmt.Errorf("%s: the node selector is %v, want %v", name, pod.Spec.NodeSelector, c.want)
		}
		return err
	}
	harness.Eventually(t, soon, func() error { return wrong("live") })
	for name := range cases {
		if err := wrong(name); err != nil {
			t.Error(err)
		}
	}
	// At each change the API server brings the policies into another order.
	for turn := range harness.Scaled(4, 20) {
		mustKubectl(t, "annotate", "--overwrite", "mutatingadmissionpolicy/refvol-live-node-selector", fmt.Sprintf("turn=%d", turn))
		for range 10 {
			must.Do(t, wrong("live"))
		}
	}
}
