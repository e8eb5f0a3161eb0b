package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
)

// ListPods lists the pods of all namespaces, as a client-go client does.
type ListPods func(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)

// Pod is a pod that uses the driver.
type Pod struct {
	Namespace, Name string
	// UID is the kubelet's UID of the pod, also for a static pod.
	UID types.UID
	// Node is "" while the pod has no node.
	Node string
	// Volumes are the names of the pod's volumes of the driver.
	Volumes []string
	// Accepted means that a kubelet has accepted the pod. Otherwise its node may not exist, because the author of a pod may name any node.
	Accepted bool
	// Started means that a container was created, so the pod's volumes had been mounted before.
	Started bool
	// Waits means that the kubelet has accepted the pod but has never created its sandbox. It creates that after all mounts, and before it
	// pulls an image. Waits is false in any case of doubt.
	Waits bool
	// Ended means that all containers have ended for good. Deleted means that somebody deleted the pod. A pod that has ended may have
	// mounts until it is gone.
	Ended, Deleted bool
}

// Using returns the pods that have a volume of driver, in the API server's order. A pod that has ended does not count. A pod that has not
// started counts, because it cannot start without the driver. If a request fails, it returns the error and the pods found so far.
func Using(ctx context.Context, pods ListPods, driver string) ([]Pod, error) {
	var using []Pod
	err := each(ctx, pods, func(pod *corev1.Pod) {
		if use, ok := UsesDriver(pod, driver); ok {
			using = append(using, use)
		}
	})
	return using, err
}

// Holding returns the pods of Using, and pods that have ended but may have mounts that only the plugin can unmount: those that are being
// deleted, and those on a node without a ready plugin, where a pod ends without an unmount. isPlugin reports whether a pod belongs to the
// plugin. The error is that of a request.
func Holding(ctx context.Context, pods ListPods, driver string, isPlugin func(*corev1.Pod) bool) ([]Pod, error) {
	var holding []Pod
	served := map[string]bool{}
	err := each(ctx, pods, func(pod *corev1.Pod) {
		if isPlugin(pod) && pod.DeletionTimestamp == nil && isReady(pod) {
			served[pod.Spec.NodeName] = true
		}
		if use, ok := use(pod, driver); ok {
			holding = append(holding, use)
		}
	})
	return slices.DeleteFunc(holding, func(pod Pod) bool {
		return pod.Ended && (pod.Node == "" || !pod.Deleted && served[pod.Node])
	}), err
}

// each calls f with each pod of a list.
func each(ctx context.Context, pods ListPods, f func(*corev1.Pod)) error {
	if err := Each(ctx, pods, metav1.ListOptions{}, f); err != nil {
		return fmt.Errorf("list the pods of all namespaces: %w", err)
	}
	return nil
}

// Each calls f with each object of a list. It requests the list page by page.
func Each[T any, L runtime.Object](ctx context.Context, page func(context.Context, metav1.ListOptions) (L, error), opts metav1.ListOptions, f func(*T)) error {
	pages := func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) { return page(ctx, opts) }
	return pager.New(pages).EachListItem(ctx, opts, func(object runtime.Object) error {
		if item, ok := any(object).(*T); ok {
			f(item)
		}
		return nil
	})
}

// UsesDriver returns how a pod uses the driver. It returns false if the pod doesn't use it or has ended.
func UsesDriver(pod *corev1.Pod, driver string) (Pod, bool) {
	use, ok := use(pod, driver)
	return use, ok && !use.Ended
}

// use returns how a pod uses the driver or has used it. It returns false if it never did.
func use(pod *corev1.Pod, driver string) (Pod, bool) {
	use := Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: uid(pod), Node: pod.Spec.NodeName, Accepted: isAccepted(pod), Started: hasStarted(pod),
		Waits:   isWaiting(pod),
		Ended:   pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Deleted: pod.DeletionTimestamp != nil,
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.CSI != nil && v.CSI.Driver == driver {
			use.Volumes = append(use.Volumes, v.Name)
		}
	}
	return use, len(use.Volumes) > 0
}

// uid returns a pod's UID. For a mirror pod it is that of the static pod, which the kubelet stores in this annotation. Anybody may write the
// annotation, but the kubelet also makes the node the pod's owner.
func uid(pod *corev1.Pod) types.UID {
	static, isSet := pod.Annotations[corev1.MirrorPodAnnotationKey]
	if isSet && slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.Name == pod.Spec.NodeName }) {
		return types.UID(static)
	}
	return pod.UID
}

// isAccepted reports whether a kubelet has written anything into the pod's status. It does so first when it accepts the pod.
func isAccepted(pod *corev1.Pod) bool {
	return pod.Status.StartTime != nil || pod.Status.HostIP != "" || hasStarted(pod)
}

// hasStarted reports whether a container of the pod was ever created. The phase Unknown counts as started: the kubelet had started that pod
// and lost contact.
func hasStarted(pod *corev1.Pod) bool {
	if pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodUnknown {
		return true
	}
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	return slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool { return c.ContainerID != "" })
}

// isWaiting reports whether a pod has never had a sandbox. It returns true only if everything in the pod's status says so. If a sandbox was
// lost, the condition has a later time.
func isWaiting(pod *corev1.Pod) bool {
	const atOnce = 2 * time.Second // the kubelet writes both with its first status
	start := pod.Status.StartTime
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReadyToStartContainers })
	if pod.Status.Phase != corev1.PodPending || start == nil || i < 0 || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	if c := &pod.Status.Conditions[i]; c.Status != corev1.ConditionFalse || c.LastTransitionTime.Sub(start.Time) > atOnce {
		return false
	}
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses)
	return !slices.ContainsFunc(all, func(c corev1.ContainerStatus) bool {
		now := c.State.Waiting
		return now == nil || now.Reason != "ContainerCreating" && now.Reason != "PodInitializing" ||
			c.ContainerID != "" || c.RestartCount > 0 || c.LastTerminationState != (corev1.ContainerState{})
	})
}
