package suite

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// busyLimit is how soon a single change must be there on a busy machine. It is less than a resync
// takes on average, which would bring what a watch has missed.
const busyLimit = 20 * time.Second

// nativeTimeout is how long the kubelet may take to bring a change into a volume of
// its own: a sync of the pod each minute, and half of that by chance, with a margin.
const nativeTimeout = 4 * time.Minute

// native describes the kubelet's own volume of a ConfigMap.
func native(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}}
}
