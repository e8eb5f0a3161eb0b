// Package inuse finds the pods that use a CSI driver inline.
//
// It owns what counts as a use. It must not know who asks, or what becomes of the answer.
package inuse

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageSize is how many pods one request asks for: a few megabytes.
const pageSize = 500

// Pods lists the pods of all namespaces. *apiclient.Client has such a method.
type Pods func(ctx context.Context, opts metav1.ListOptions) (*corev1.PodList, error)

// Pod is a pod that uses the driver.
type Pod struct {
	Namespace, Name string
	// Node is empty while the pod has none.
	Node string
}

// List returns the pods that have a volume of driver, in the API server's order. A pod that has
// ended uses nothing any more: the kubelet has unmounted its volumes. One that has not started yet
// counts, as it could not start without the driver. The error is that of a request. Then the
// pods that were found are not all.
func List(ctx context.Context, pods Pods, driver string) ([]Pod, error) {
	var using []Pod
	opts := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := pods(ctx, opts)
		if err != nil {
			return using, fmt.Errorf("list the pods of all namespaces: %w", err)
		}
		for i := range page.Items {
			if pod := &page.Items[i]; uses(pod, driver) {
				using = append(using, Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName})
			}
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return using, nil
		}
	}
}

func uses(pod *corev1.Pod, driver string) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.CSI != nil && v.CSI.Driver == driver })
}
