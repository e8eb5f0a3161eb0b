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
	// Current means that the volumes show the requested versions. Shows means that they show some version of each object.
	Current, Shows bool
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
					t = &Taker{Pod: v.Pod, Current: true, Shows: true}
					takers[v.Pod.UID] = t
				}
				t.Current, t.Shows = t.Current && v.Shows(&o, version), t.Shows && o.Shown != nil
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

// IsImmutable reports whether a plugin knows an object as immutable. It then hears of no annotation.
func (s *Survey) IsImmutable(object Object) bool {
	return slices.ContainsFunc(s.Nodes, func(n Node) bool {
		return n.Report != nil && slices.ContainsFunc(n.Report.Objects, func(o *status.Object) bool { return o.Immutable && Object(o.Key()) == object })
	})
}

// LaggardsOf returns the laggards that a step of a rollout waits for. It leaves out Pinned volumes, pods that don't take the version in this
// step, and nodes that don't answer and have no pod that takes it. takes reports whether the pod with a UID does.
func (v *Result) LaggardsOf(survey *Survey, isCanary bool, takes func(uid string) bool) []OutdatedVolume {
	return slices.DeleteFunc(slices.Clone(v.Laggards), func(l OutdatedVolume) bool {
		switch {
		case l.Reason == Pinned:
			return true
		case l.Pod == nil:
			i := slices.IndexFunc(survey.Nodes, func(n Node) bool { return n.Name == l.Node })
			return i >= 0 && !slices.ContainsFunc(survey.Nodes[i].Pods, func(p Pod) bool { return takes(string(p.UID)) })
		case l.Reason == Held, l.Reason == Spreading, l.Reason == Outdated, isCanary && l.Reason == NotShown: // the plugin may not have received the version yet
			return !takes(l.Pod.UID)
		}
		return false
	})
}

// notifyContainer is the name of the sidecar that the component restart adds (docs/apply.md).
const notifyContainer = "refvol-notify"

// Restarts returns the restarts of each container of a pod's application, by name.
func Restarts(pod *corev1.Pod) map[string]int32 {
	restarts := map[string]int32{}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.Name != notifyContainer { // while the kubelet has old variables, it restarts alone
			restarts[c.Name] = c.RestartCount
		}
	}
	return restarts
}

// IsReady reports whether a pod is ready.
func IsReady(pod *corev1.Pod) bool { return isReady(pod) }

// IsDisrupted reports whether something is about to end a pod: a drain, a preemption, or a node that is lost.
func IsDisrupted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
	})
}

// NotReadyText names the containers that are not ready, with the kubelet's reasons. It leaves out the containers' own messages, because a
// program may write a value into them.
func NotReadyText(pod *corev1.Pod) (text string) {
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

// longestSpread is the longest value of the attribute spread. A longer one is refused, and its pod does not start.
const longestSpread = time.Hour

// LongestSpread returns the longest valid attribute spread of a pod's volumes of a driver.
func LongestSpread(pod *corev1.Pod, driver string) (longest time.Duration) {
	for i := range pod.Spec.Volumes {
		if csi := pod.Spec.Volumes[i].CSI; csi != nil && csi.Driver == driver {
			if spread, err := time.ParseDuration(csi.VolumeAttributes["spread"]); err == nil && spread <= longestSpread {
				longest = max(longest, spread)
			}
		}
	}
	return longest
}

// UIDOf returns the UID with which the kubelet and the plugin identify a pod.
func UIDOf(pod *corev1.Pod) string { return string(uid(pod)) }
