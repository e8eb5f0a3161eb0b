package fleet

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod that waits on a node without a plugin shows no version, if no plugin has run there since a kubelet accepted the pod. The API server
// keeps no history of that. So all of this must be true at two looks with Settle between them:
//
//  - The node is ready, so what its kubelet has written is not old.
//  - Its CSINode exists and lacks the driver. Without a registered plugin the kubelet mounts nothing.
//  - No pod of the plugin is on the node, in any phase, or is to be scheduled there. A plugin that restarts has a pod while
//    it is missing from the CSINode. A pod that is replaced is missing for less than Settle, and the new one names its node
//    before it is scheduled.
//  - No pod with a volume of the driver has ever had a sandbox there. The kubelet creates it after all mounts, so no pod uses
//    a file, and no pod has a mount that was made for it.
//
// One case remains: a plugin mounts a volume, and somebody removes the plugin from the node before the kubelet creates the pod's sandbox.

// isWaitingForPlugin reports whether, according to this look, nothing is mounted for a node's pods.
func (o *Options) isWaitingForPlugin(node *Node, csiNodes []storagev1.CSINode, plugins []corev1.Pod) bool {
	if node.pod != nil || len(node.Pods) == 0 || slices.ContainsFunc(node.Pods, func(p Pod) bool { return !p.Waits }) {
		return false
	}
	return o.isWithoutPlugin(node.Name, csiNodes, plugins)
}

// isWithoutPlugin reports whether the driver is not registered on a node, and no pod of the plugin is there or to be scheduled there.
func (o *Options) isWithoutPlugin(node string, csiNodes []storagev1.CSINode, plugins []corev1.Pod) bool {
	i := slices.IndexFunc(csiNodes, func(n storagev1.CSINode) bool { return n.Name == node })
	return i >= 0 && !o.isRegistered(&csiNodes[i]) && !slices.ContainsFunc(plugins, func(pod corev1.Pod) bool { return mayRunOn(&pod, node) })
}

func (o *Options) isRegistered(node *storagev1.CSINode) bool {
	return slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == o.Driver })
}

// mayRunOn reports whether a plugin's pod is on a node, or may be scheduled there. A DaemonSet's pod names its node in its affinity.
func mayRunOn(pod *corev1.Pod, node string) bool {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName == node
	}
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchFields, func(field corev1.NodeSelectorRequirement) bool {
			return field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && !slices.Contains(field.Values, node)
		})
	})
}

// confirmWaiting confirms with a second look which pods wait. If the second look differs, they count as others. first is the time of the
// first look. The error is as Collect's.
func (o *Options) confirmWaiting(ctx context.Context, nodes []Node, first time.Time) error {
	var waiting []*Node
	for i := range nodes {
		node := &nodes[i]
		if node.isWaiting && node.Problem != nil && node.Problem.Reason == NoPlugin {
			waiting = append(waiting, node)
		}
		node.isWaiting = false
	}
	if len(waiting) == 0 || !pause(ctx, time.Until(first.Add(o.Settle))) {
		return cancelled(ctx)
	}
	csiNodes, err := o.CSINodes(ctx)
	if err != nil {
		return ignoreDeadline(ctx, err)
	}
	plugins, err := o.Plugins(ctx)
	if err != nil {
		return ignoreDeadline(ctx, err)
	}
	waiting = slices.DeleteFunc(waiting, func(node *Node) bool { return !o.isWithoutPlugin(node.Name, csiNodes, plugins) })
	o.refreshPods(ctx, waiting)
	return cancelled(ctx)
}

// refreshPods sets for each node whether it is ready and all its pods wait. It removes pods that are gone.
func (o *Options) refreshPods(ctx context.Context, nodes []*Node) {
	type look struct {
		ready bool
		// pods are the node's pods; nil for one that is gone.
		pods []*Pod
	}
	looks := make([]look, len(nodes))
	var group errgroup.Group
	group.SetLimit(o.AtOnce)
	for i, node := range nodes {
		l := &looks[i]
		l.pods = make([]*Pod, len(node.Pods))
		group.Go(func() error {
			bounded, cancel := context.WithTimeout(ctx, o.Timeout)
			defer cancel()
			ready, err := o.NodeReady(bounded, node.Name)
			l.ready = ready && err == nil
			return nil
		})
		for j := range node.Pods {
			group.Go(func() error {
				l.pods[j] = o.podAgain(ctx, node.Pods[j])
				return nil
			})
		}
	}
	_ = group.Wait() // a failed request means doubt
	for i, node := range nodes {
		node.isWaiting = looks[i].ready
		var pods []Pod
		for _, pod := range looks[i].pods {
			if pod != nil {
				pods = append(pods, *pod)
				node.isWaiting = node.isWaiting && pod.Waits
			}
		}
		node.Pods = pods
	}
}

// podAgain returns the present state of a pod, or nil if it is gone. If the request fails, the pod does not count as waiting.
func (o *Options) podAgain(ctx context.Context, pod Pod) *Pod {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	now, err := o.Pod(ctx, pod.Namespace, pod.Name)
	switch {
	case err == nil && now == nil:
		return nil
	case err != nil || now.UID != pod.UID || now.Node != pod.Node:
		pod.Waits = false
		return &pod
	}
	return now
}

// pause waits for a time, and reports whether ctx was still valid at its end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// cancelled returns the cause if ctx was cancelled. It returns nil if ctx reached its deadline or is still valid.
func cancelled(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return context.Cause(ctx)
	}
	return nil
}

// ignoreDeadline returns the error of a request, or nil if ctx reached its deadline.
func ignoreDeadline(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	return err
}
