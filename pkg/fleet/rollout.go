package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/status"
)

// Taker is a pod with volumes that name some objects and take their changes.
type Taker struct {
	status.Pod

	// Objects are the objects that the volumes name.
	Objects []Object
	// Current means that the volumes show the requested versions.
	Current bool
}

// Takers returns the pods with volumes that name one of some objects, by UID. Pinned volumes don't count, because they take no changes.
func (s *Survey) Takers(versions map[Object]status.Version) []Taker {
	takers := map[string]*Taker{}
	for i := range s.Nodes {
		if s.Nodes[i].Report == nil {
			continue
		}
		for j := range s.Nodes[i].Report.Volumes {
			v := &s.Nodes[i].Report.Volumes[j]
			for _, o := range v.Objects {
				object := Object(o.Key())
				version, asked := versions[object]
				if !asked || v.Condition == conditionPinned || o.Withdrawn && o.Shown == nil {
					continue
				}
				t := takers[v.Pod.UID]
				if t == nil {
					t = &Taker{Pod: v.Pod, Current: true}
					takers[v.Pod.UID] = t
				}
				t.Current = t.Current && o.Shown != nil && o.Shown.Is(version)
				if !slices.Contains(t.Objects, object) {
					t.Objects = append(t.Objects, object)
				}
			}
		}
	}
	var all []Taker
	for _, uid := range slices.Sorted(maps.Keys(takers)) {
		all = append(all, *takers[uid])
	}
	return all
}

// WithoutRollout returns the nodes whose plugins would also show a held version to pods that must not take it yet: the plugins don't
// support rollouts, and report a volume that names the object or may name it.
func (s *Survey) WithoutRollout(object Object) (nodes []string) {
	for i := range s.Nodes {
		report := s.Nodes[i].Report
		if report != nil && !report.KnowsRollout && slices.ContainsFunc(report.Volumes, func(v status.Volume) bool {
			return len(v.Objects) == 0 ||
				slices.ContainsFunc(v.Objects, func(o status.VolumeObject) bool { return Object(o.Key()) == object })
		}) {
			nodes = append(nodes, s.Nodes[i].Name)
		}
	}
	return nodes
}

// LaggardsOf returns the laggards that a step of a rollout waits for. It leaves out Pinned volumes, and pods that don't take the version in
// this step.
func (v *Result) LaggardsOf(takes func(status.Pod) bool) []OutdatedVolume {
	return slices.DeleteFunc(slices.Clone(v.Laggards), func(l OutdatedVolume) bool {
		switch l.Reason {
		case Pinned:
			return true
		case Held, Spreading, Outdated: // Outdated: the plugin has not received the version yet
			return l.Pod != nil && !takes(*l.Pod)
		default:
			return false
		}
	})
}

// notifyContainer is the name of the sidecar that the component restart adds (docs/apply.md).
const notifyContainer = "refvol-notify"

// Health is a pod's health at one moment.
type Health struct {
	Ready bool
	// restarts has those of each container of the application, by name.
	restarts map[string]int32
}

// HealthOf returns a pod's present health.
func HealthOf(pod *corev1.Pod) Health {
	h := Health{Ready: isReady(pod), restarts: map[string]int32{}}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.Name != notifyContainer { // while the kubelet has old variables, it restarts alone
			h.restarts[c.Name] = c.RestartCount
		}
	}
	return h
}

// since returns how often the pod has restarted since before. A restart in place, which restarts all containers, counts once.
func (h Health) since(before Health) (most int32) {
	for name, restarts := range h.restarts {
		most = max(most, restarts-before.restarts[name])
	}
	return most
}

// IsFailing reports whether the pod has restarted and is not ready.
func (h Health) IsFailing() bool { return !h.Ready && h.since(Health{}) > 0 }

// Regression says in what respect a pod is worse than before, or returns "". It ignores pods that are deleted, have succeeded, or were
// failing before. A pod may restart up to restarts times, but must be ready at the end.
func (h Health) Regression(pod *corev1.Pod, restarts int32, end bool) string {
	now := HealthOf(pod)
	restarted := now.since(h)
	switch {
	case pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || h.IsFailing():
		return ""
	case pod.Status.Phase == corev1.PodFailed:
		return "failed" + notReadyText(pod)
	case restarted > restarts:
		return "restarted " + times(restarted) + notReadyText(pod)
	case h.Ready && !now.Ready && (restarts == 0 || end):
		return "is not ready any more" + notReadyText(pod)
	}
	return ""
}

// NotReadyReason says why a pod is not ready, or returns "" if it is ready.
func NotReadyReason(pod *corev1.Pod) string {
	if isReady(pod) {
		return ""
	}
	return "is not ready" + notReadyText(pod)
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// notReadyText names the containers that are not ready, with the kubelet's reasons. It leaves out the containers' own messages, because a
// program may write a value into them.
func notReadyText(pod *corev1.Pod) (text string) {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		ended := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
		if c.State.Waiting != nil {
			text += fmt.Sprintf("; container %s: %s", c.Name, c.State.Waiting.Reason)
		}
		switch {
		case ended != nil:
			text += fmt.Sprintf("; container %s ended: %s, exit code %d", c.Name, ended.Reason, ended.ExitCode)
		case !c.Ready && c.State.Waiting == nil:
			text += fmt.Sprintf("; container %s is not ready", c.Name)
		}
	}
	return text
}

// LongestSpread returns the longest attribute spread of a pod's volumes of a driver.
func LongestSpread(pod *corev1.Pod, driver string) (longest time.Duration) {
	for i := range pod.Spec.Volumes {
		if csi := pod.Spec.Volumes[i].CSI; csi != nil && csi.Driver == driver {
			if spread, err := time.ParseDuration(csi.VolumeAttributes["spread"]); err == nil {
				longest = max(longest, spread)
			}
		}
	}
	return longest
}

// UIDOf returns the UID with which the kubelet and the plugin identify a pod.
func UIDOf(pod *corev1.Pod) string { return string(uid(pod)) }
