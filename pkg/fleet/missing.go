package fleet

import (
	"context"
	"iter"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Missing yields the pods of which the plugin does not report all volumes, and the names of those
// volumes. Without a report it yields none.
func (n *Node) Missing() iter.Seq2[Pod, []string] {
	return func(yield func(Pod, []string) bool) {
		if n.Report == nil {
			return
		}
		type key struct {
			uid  types.UID
			name string
		}
		reported := map[key]bool{}
		for i := range n.Report.Volumes {
			v := &n.Report.Volumes[i]
			reported[key{types.UID(v.Pod.UID), v.Name}] = true
		}
		for _, pod := range n.Pods {
			missing := slices.DeleteFunc(slices.Clone(pod.Volumes), func(name string) bool { return reported[key{pod.UID, name}] })
			if len(missing) > 0 && !yield(pod, missing) {
				return
			}
		}
	}
}

// forgetEnded takes out the pods that have ended since they were listed. Their volumes are unpublished,
// so the plugin rightly does not report them.
func (f *Fleet) forgetEnded(ctx context.Context, node *Node) {
	ended := map[types.UID]bool{}
	for pod := range node.Missing() {
		if !pod.Started {
			continue
		}
		// What can't be found out is missing.
		if now, err := f.opts.Pod(ctx, pod.Namespace, pod.Name); err == nil && (now == nil || now.UID != pod.UID) {
			ended[pod.UID] = true
		}
	}
	node.Pods = slices.DeleteFunc(node.Pods, func(pod Pod) bool { return ended[pod.UID] })
}
