package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/kubernetes/pkg/kubelet/configmap"
)

// syncPeriod is the kubelet's default.
const syncPeriod = time.Minute

// asKubelet has the kubelet's own manager of ConfigMaps hear of the node's pods. Nothing reads from
// the manager, as for volumes that no container mounts.
func (f *follower) asKubelet(ctx context.Context) error {
	pods, err := f.client.CoreV1().Pods(f.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", f.node).String(),
	})
	if err != nil {
		return err
	}
	manager := configmap.NewWatchingConfigMapManager(f.client, syncPeriod)
	for i := range pods.Items {
		manager.RegisterPod(&pods.Items[i])
	}
	return nil
}
