package fleet

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/status"
)

// TestTakers: a pod is current if all its volumes show the version of all objects that they name.
func TestTakers(t *testing.T) {
	object := Object{Kind: "Secret", Namespace: "shop", Name: "db"}
	second := volumeOf("split", "Held", &older)
	second.Name = "second"
	survey := &Survey{Nodes: []Node{
		reports(volumeOf("new", "Current", &current), volumeOf("held", "Held", &older), volumeOf("pinned", "Pinned", &older), withdrawn(volumeOf("lost", "RefForbidden", nil))),
		reports(volumeOf("split", "Current", &current), second, volumeOf("waits", "Unknown", nil), status.Volume{Condition: "Current", Pod: status.Pod{UID: "uid-other"}}),
		{Name: "none"},
	}}
	var got []string
	for _, taker := range survey.Takers(map[Object]status.Version{object: current}) {
		got = append(got, fmt.Sprint(taker.Name, " ", taker.Current, " ", taker.Shows, " ", len(taker.Objects)))
	}
	if want := []string{"held false true 1", "new true true 1", "split false true 1", "waits false false 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestIsImmutable: a plugin has to say so of this object.
func TestIsImmutable(t *testing.T) {
	object := Object{Kind: "Secret", Namespace: "shop", Name: "db"}
	for want, o := range map[bool]status.Object{true: {Name: "db", Immutable: true}, false: {Name: "db"}} {
		o.Kind, o.Namespace = object.Kind, object.Namespace
		other := status.Object{Kind: "ConfigMap", Namespace: "shop", Name: "db", Immutable: true}
		survey := &Survey{Nodes: []Node{{Name: "none"}, {Report: &status.Report{Objects: []*status.Object{&other, &o}}}}}
		if survey.IsImmutable(object) != want {
			t.Errorf("immutable: %t", !want)
		}
	}
}

// TestWithoutRollout: a plugin of an earlier release counts if one of its volumes shows the object, or may show it.
func TestWithoutRollout(t *testing.T) {
	object := Object{Kind: "Secret", Namespace: "shop", Name: "db"}
	for name, test := range map[string]struct {
		node  Node
		knows bool
		want  int
	}{
		"shows it":        {reports(volumeOf("a", "Current", &current)), false, 1},
		"knows":           {reports(volumeOf("a", "Current", &current)), true, 0},
		"may show it":     {reports(without(volumeOf("a", "Unknown", nil))), false, 1},
		"shows another":   {reports(status.Volume{Objects: []status.VolumeObject{{Object: &status.Object{Kind: "Secret", Namespace: "shop", Name: "other"}}}}), false, 0},
		"shows nothing":   {reports(), false, 0},
		"does not report": {Node{Name: "n"}, false, 0},
	} {
		if test.node.Report != nil {
			test.node.Report.KnowsRollout = test.knows
		}
		if got := (&Survey{Nodes: []Node{test.node}}).WithoutRollout(object); len(got) != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestStepWaits: a step waits for the volumes of its pods, and for nodes that don't answer and have such a pod.
func TestStepWaits(t *testing.T) {
	survey := &Survey{Nodes: []Node{
		{Name: "lost without one", Problem: &Problem{Reason: Unreachable}, Pods: []Pod{{UID: "uid-out"}}},
		reports(volumeOf("in", "Held", &older), volumeOf("out", "Held", &older), volumeOf("out", "Current", &older), volumeOf("out", "Spreading", &older),
			volumeOf("in", "Pinned", &older), volumeOf("out", "Unknown", nil)),
		{Name: "lost", Problem: &Problem{Reason: Unreachable}, Pods: []Pod{{UID: "uid-out"}, {UID: "uid-in"}}},
	}}
	result := Evaluate(Object{Kind: "Secret", Namespace: "shop", Name: "db"}, false, &current, &current, survey)
	for isCanary, want := range map[bool][]string{false: {"Held", "NotShown", "Unreachable"}, true: {"Held", "Unreachable"}} {
		var got []string
		for _, l := range result.LaggardsOf(survey, isCanary, func(uid string) bool { return uid == "uid-in" }) {
			got = append(got, string(l.Reason))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("canary %t: got %q, want %q", isCanary, got, want)
		}
	}
}

// TestSigns: what a pod's status says about its health. The sidecar's restarts don't count, and no text of a program is repeated.
func TestSigns(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "refvol-notify", RestartCount: 9}, {Name: "init", RestartCount: 1}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", RestartCount: 4,
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "a value"}},
			LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3, Message: "a value"}},
		}, {Name: "second"}, {Name: "third", Ready: true}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}, {Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}
	if got := fmt.Sprint(Restarts(pod)); got != "map[init:1 main:4 second:0 third:0]" {
		t.Error(got)
	}
	if got, want := NotReadyText(pod), "; container main: CrashLoopBackOff; container main ended: Error, exit code 3; container second is not ready"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !IsDisrupted(pod) || IsReady(pod) || IsDisrupted(&corev1.Pod{}) {
		t.Error("it is disrupted and not ready")
	}
}

func TestLongestSpread(t *testing.T) {
	pod := &corev1.Pod{}
	for _, v := range []*corev1.CSIVolumeSource{
		nil,
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "1m"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": longestSpread.String()}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "long"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "61m"}}, // no plugin publishes it
		{Driver: "csi.example.com", VolumeAttributes: map[string]string{"spread": "1h"}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: v}})
	}
	if got := LongestSpread(pod, "csi.refvol.dev"); got != time.Hour {
		t.Errorf("got %s", got)
	}
}

func podWith(name string, phase corev1.PodPhase, drivers ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name, UID: types.UID("uid-of-" + name)}}
	pod.Spec.NodeName, pod.Status.Phase = "node-of-"+name, phase
	pod.Spec.Volumes = []corev1.Volume{{Name: "scratch"}}
	for i, driver := range drivers {
		v := corev1.Volume{Name: fmt.Sprint("v", i)}
		v.CSI = &corev1.CSIVolumeSource{Driver: driver}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}

// pagesOf returns a server of pages.
func pagesOf(t *testing.T, pages ...[]corev1.Pod) ListPods {
	return func(_ context.Context, opts metav1.ListOptions) (*corev1.PodList, error) {
		page, _ := strconv.Atoi(opts.Continue) // the first one has no number
		if opts.Limit != 500 {
			t.Errorf("a page of %d pods, want 500", opts.Limit)
		}
		list := &corev1.PodList{Items: pages[page]}
		if page+1 < len(pages) {
			list.Continue = strconv.Itoa(page + 1)
		}
		return list, nil
	}
}

func TestUsing(t *testing.T) {
	unscheduled := podWith("waits", corev1.PodPending, driver)
	unscheduled.Spec.NodeName = ""
	starting, initializing := podWith("starts", corev1.PodPending, driver, driver), podWith("initializes", corev1.PodPending, driver)
	starting.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}}
	starting.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "of another pod"} // anybody may write that
	initializing.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "static"}
	initializing.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: initializing.Spec.NodeName}}
	initializing.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://1"}}
	accepted, placed := podWith("accepted", corev1.PodPending, driver), podWith("placed", corev1.PodPending, driver)
	accepted.Status.StartTime = &metav1.Time{}
	placed.Status.HostIP = "10.0.0.1"
	pods := pagesOf(t,
		[]corev1.Pod{podWith("runs", corev1.PodRunning, "other.example.com", driver), podWith("other", corev1.PodRunning, "other.example.com"), podWith("none", corev1.PodRunning)},
		nil,
		[]corev1.Pod{podWith("done", corev1.PodSucceeded, driver), podWith("failed", corev1.PodFailed, driver), podWith("lost", corev1.PodUnknown, driver), unscheduled, starting, initializing, accepted, placed},
	)
	want := []Pod{
		{Namespace: "apps", Name: "runs", UID: "uid-of-runs", Node: "node-of-runs", Volumes: []string{"v1"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "lost", UID: "uid-of-lost", Node: "node-of-lost", Volumes: []string{"v0"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "waits", UID: "uid-of-waits", Volumes: []string{"v0"}},
		{Namespace: "apps", Name: "starts", UID: "uid-of-starts", Node: "node-of-starts", Volumes: []string{"v0", "v1"}},
		{Namespace: "apps", Name: "initializes", UID: "static", Node: "node-of-initializes", Volumes: []string{"v0"}, Accepted: true, Started: true},
		{Namespace: "apps", Name: "accepted", UID: "uid-of-accepted", Node: "node-of-accepted", Volumes: []string{"v0"}, Accepted: true},
		{Namespace: "apps", Name: "placed", UID: "uid-of-placed", Node: "node-of-placed", Volumes: []string{"v0"}, Accepted: true},
	}
	if got, err := Using(t.Context(), pods, driver); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestHolding: before an uninstall the administrator hears of each pod whose mounts only the plugin can remove.
func TestHolding(t *testing.T) {
	on := func(node string, pod corev1.Pod) corev1.Pod {
		pod.Spec.NodeName = node
		return pod
	}
	deleted := func(pod corev1.Pod) corev1.Pod {
		pod.DeletionTimestamp = &metav1.Time{}
		return pod
	}
	plugin := func(node string, ready corev1.ConditionStatus) corev1.Pod {
		pod := on(node, podWith("plugin-on-"+node, corev1.PodRunning))
		pod.Labels = map[string]string{"app": "refvol"}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return pod
	}
	pods := pagesOf(t, []corev1.Pod{
		on("served", podWith("runs", corev1.PodRunning, driver)),
		on("served", podWith("done", corev1.PodSucceeded, driver)),
		deleted(on("served", podWith("goes", corev1.PodSucceeded, driver))),
		on("served", podWith("other", corev1.PodRunning, "other.example.com")),
		on("not-ready", podWith("left", corev1.PodFailed, driver)),
		on("ends", podWith("late", corev1.PodSucceeded, driver)),
		on("none", podWith("alone", corev1.PodSucceeded, driver)),
		on("", podWith("never-placed", corev1.PodFailed, driver)),
	}, []corev1.Pod{
		plugin("served", corev1.ConditionTrue), plugin("not-ready", corev1.ConditionFalse), deleted(plugin("ends", corev1.ConditionTrue)),
	})
	isPlugin := func(pod *corev1.Pod) bool { return pod.Labels["app"] == "refvol" }
	holding, err := Holding(t.Context(), pods, driver, isPlugin)
	names := make([]string, len(holding))
	for i, pod := range holding {
		names[i] = pod.Name
	}
	if want := []string{"runs", "goes", "left", "late", "alone"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %q, %v, want %q", names, err, want)
	}
}
