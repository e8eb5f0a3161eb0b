package check

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/refvol/refvol/pkg/volume"
)

// restartSince is the first version of the kubelet that restarts all containers of a pod. The scheduler of that version places a pod with
// this rule only on such nodes.
const restartSince = "1.36"

// Node is a node, as far as it matters for pods that restart in place.
type Node struct {
	Name    string `json:"name"`
	Kubelet string `json:"kubelet"`
	// Labels are those of the node.
	Labels map[string]string `json:"-"`
}

// isOld reports whether the kubelet is too old to restart all containers of a pod. A version that can't be read is not.
func (n *Node) isOld() bool {
	v, err := version.ParseGeneric(n.Kubelet)
	return err == nil && v.LessThan(version.MustParseGeneric(restartSince))
}

func oldNodes(nodes []Node) []Node {
	old := []Node{}
	for i := range nodes {
		if nodes[i].isOld() {
			old = append(old, nodes[i])
		}
	}
	return old
}

// restartPod adds whether a pod gets the sidecar, and what the sidecar doesn't follow.
func (c *Checker) restartPod(made, created *corev1.Pod, nodes []Node, to *LabelPod) {
	if slices.ContainsFunc(containersOf(&made.Spec), func(one corev1.Container) bool { return one.Name == notifyProgram || isNotify(&one) }) {
		return // its author has written a sidecar
	}
	var followed []string
	others := containersOf(&created.Spec)
	if at := slices.IndexFunc(others, isOwnSidecar); at >= 0 {
		to.Changed = append(to.Changed, notifyProgram)
		for _, m := range others[at].VolumeMounts {
			followed = append(followed, m.Name)
		}
		others = slices.Delete(others, at, at+1)
		if onlyOldNodes(&created.Spec, nodes) {
			to.Problems = append(to.Problems, "no node that it may run on has a kubelet of "+restartSince+" or newer, so it would stay Pending")
		}
	}
	if slices.ContainsFunc(others, hasVariables) && !slices.Contains(followed, notifyEnv) {
		to.Stays = append(to.Stays, "variables")
	}
	for i := range created.Spec.Volumes {
		v := &created.Spec.Volumes[i]
		if v.CSI == nil || v.CSI.Driver != c.opts.Driver || v.CSI.VolumeAttributes["updatePolicy"] == string(volume.UpdatePinned) {
			continue
		}
		isMounted := slices.ContainsFunc(others, func(one corev1.Container) bool {
			return slices.ContainsFunc(one.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
		})
		if isMounted && !slices.Contains(followed, v.Name) {
			to.Stays = append(to.Stays, "volume "+v.Name)
		}
	}
}

// containersOf returns the containers that the policies know.
func containersOf(spec *corev1.PodSpec) []corev1.Container {
	return slices.Concat(spec.InitContainers, spec.Containers)
}

// hasVariables reports whether a container has variables of ConfigMaps or Secrets.
func hasVariables(c corev1.Container) bool {
	return len(c.EnvFrom) > 0 || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		return e.ValueFrom != nil && (e.ValueFrom.ConfigMapKeyRef != nil || e.ValueFrom.SecretKeyRef != nil)
	})
}

// onlyOldNodes reports whether the node selector of a pod matches nodes, all of which are too old. Its affinity is not looked at.
func onlyOldNodes(spec *corev1.PodSpec, nodes []Node) bool {
	selector := labels.SelectorFromSet(spec.NodeSelector)
	matching := 0
	for i := range nodes {
		if !selector.Matches(labels.Set(nodes[i].Labels)) {
			continue
		}
		if matching++; !nodes[i].isOld() {
			return false
		}
	}
	return matching > 0
}
