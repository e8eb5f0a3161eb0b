package suite

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// liveLimit is how soon a container sees a change, on an idle machine.
	liveLimit = 250 * time.Millisecond
	// busyLimit is how soon a single change must be there on a busy one. It is less than a
	// resync takes on average, which would bring what a watch has missed.
	busyLimit = 20 * time.Second
)

// medianLimit is liveLimit for the median of several changes beside those that took a watch
// of this process so long.
func medianLimit(bare []time.Duration) time.Duration {
	return liveLimit + 10*harness.Median(bare)
}

// nativeTimeout is how long the kubelet may take to bring a change into a volume of
// its own: a sync of the pod each minute, and half of that by chance, with a margin.
const nativeTimeout = 4 * time.Minute

// native describes the kubelet's own volume of a ConfigMap.
func native(name, configMap string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}},
	}}
}
