package fleet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/status"
)

// TestTakers: a pod is current if all its volumes show the version of all objects that they name.
func TestTakers(t *testing.T) {
	object := Object{Kind: "Secret", Namespace: "shop", Name: "db"}
	second := volumeOf("split", "Held", &older)
	second.Name = "second"
	survey := &Survey{Nodes: []Node{
		reports(volumeOf("new", "Current", &current), volumeOf("held", "Held", &older), volumeOf("pinned", "Pinned", &older), withdrawn(volumeOf("lost", "RefForbidden", nil))),
		reports(volumeOf("split", "Current", &current), second, status.Volume{Condition: "Current", Pod: status.Pod{UID: "uid-other"}}),
		{Name: "none"},
	}}
	var got []string
	for _, taker := range survey.Takers(map[Object]status.Version{object: current}) {
		got = append(got, fmt.Sprint(taker.Name, " ", taker.Current, " ", len(taker.Objects)))
	}
	if want := []string{"held false 1", "new true 1", "split false 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
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
		reports(volumeOf("in", "Held", &older), volumeOf("out", "Held", &older), volumeOf("out", "Current", &older), volumeOf("out", "Spreading", &older),
			volumeOf("in", "Pinned", &older), volumeOf("out", "Unknown", nil)),
		{Name: "lost", Problem: &Problem{Reason: Unreachable}, Pods: []Pod{{UID: "uid-out"}, {UID: "uid-in"}}},
		{Name: "lost without one", Problem: &Problem{Reason: Unreachable}, Pods: []Pod{{UID: "uid-out"}}},
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
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "5m"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "long"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "6h"}}, // no plugin publishes it
		{Driver: "csi.example.com", VolumeAttributes: map[string]string{"spread": "1h"}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: v}})
	}
	if got := LongestSpread(pod, "csi.refvol.dev"); got != 5*time.Minute {
		t.Errorf("got %s", got)
	}
}
