package fleet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestStepWaits: a step waits for the volumes of its pods, and for nodes about which nothing is known.
func TestStepWaits(t *testing.T) {
	result := Evaluate(Object{Kind: "Secret", Namespace: "shop", Name: "db"}, false, &current, &current, &Survey{Nodes: []Node{
		reports(volumeOf("in", "Held", &older), volumeOf("out", "Held", &older), volumeOf("out", "Current", &older), volumeOf("out", "Spreading", &older),
			volumeOf("in", "Pinned", &older), volumeOf("out", "Unknown", nil)),
		{Name: "lost", Problem: &Problem{Reason: Unreachable}},
	}})
	var got []string
	for _, l := range result.LaggardsOf(func(pod status.Pod) bool { return pod.Name == "in" }) {
		got = append(got, string(l.Reason))
	}
	slices.Sort(got)
	if want := []string{"Held", "NotShown", "Unreachable"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func healthPod(ready bool, restarts int32, change func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: ready, RestartCount: restarts}}}}
	if ready {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if change != nil {
		change(pod)
	}
	return pod
}

func TestWorse(t *testing.T) {
	well := HealthOf(healthPod(true, 2, nil))
	withSidecar := func(restarts int32) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "refvol-notify", RestartCount: restarts}}
		}
	}
	crashes := func(pod *corev1.Pod) {
		c := &pod.Status.ContainerStatuses[0]
		c.State.Waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "a value"}
		c.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3, Message: "a value"}
	}
	for name, test := range map[string]struct {
		before  Health
		pod     *corev1.Pod
		allowed int32
		end     bool
		want    string
	}{
		"as before":                    {well, healthPod(true, 2, nil), 0, true, ""},
		"not ready":                    {well, healthPod(false, 2, nil), 0, false, "is not ready any more; container main is not ready"},
		"restarted":                    {well, healthPod(true, 3, nil), 0, false, "restarted once"},
		"crashes":                      {well, healthPod(false, 4, crashes), 0, false, "restarted 2 times; container main: CrashLoopBackOff; container main ended: Error, exit code 3"},
		"may restart":                  {well, healthPod(false, 3, nil), 1, false, ""},
		"may restart, and is not up":   {well, healthPod(false, 3, nil), 1, true, "is not ready any more; container main is not ready"},
		"may restart once":             {well, healthPod(true, 4, nil), 1, false, "restarted 2 times"},
		"may restart in place":         {HealthOf(healthPod(true, 2, withSidecar(1))), healthPod(true, 3, withSidecar(2)), 1, true, ""},
		"the sidecar tries again":      {HealthOf(healthPod(true, 2, withSidecar(1))), healthPod(true, 3, withSidecar(5)), 1, true, ""},
		"one container restarts twice": {HealthOf(healthPod(true, 2, withSidecar(9))), healthPod(true, 4, withSidecar(9)), 1, true, "restarted 2 times"},
		"was not ready":                {Health{}, healthPod(false, 0, nil), 0, true, ""},
		"was not ready, and restarted": {Health{}, healthPod(false, 1, nil), 0, true, "restarted once; container main is not ready"},
		"was failing":                  {HealthOf(healthPod(false, 2, nil)), healthPod(false, 3, crashes), 0, true, ""},
		"is deleted":                   {well, healthPod(false, 3, func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{} }), 0, true, ""},
		"has succeeded":                {well, healthPod(false, 2, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }), 0, true, ""},
		"failed":                       {well, healthPod(false, 2, func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }), 0, true, "failed; container main is not ready"},
	} {
		if got := test.before.Regression(test.pod, test.allowed, test.end); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestLongestSpread(t *testing.T) {
	pod := &corev1.Pod{}
	for _, v := range []*corev1.CSIVolumeSource{
		nil,
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "1m"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "5m"}},
		{Driver: "csi.refvol.dev", VolumeAttributes: map[string]string{"spread": "long"}},
		{Driver: "csi.example.com", VolumeAttributes: map[string]string{"spread": "1h"}},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{CSI: v}})
	}
	if got := LongestSpread(pod, "csi.refvol.dev"); got != 5*time.Minute {
		t.Errorf("got %s", got)
	}
}
