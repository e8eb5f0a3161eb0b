package suite

import corev1 "k8s.io/api/core/v1"

// nodeIdentityDriver is that of the third plugin that the runner installs, which reads
// objects with its node's rights.
const nodeIdentityDriver = "node-identity.refvol.dev"

// asNode describes a volume of the driver that reads as the node, which shows what the pod's own
// volume shown names.
func asNode(name, shown string) corev1.Volume {
	v := refvol(name, attributes{"volume": shown})
	v.CSI.Driver = nodeIdentityDriver
	return v
}

// withUnmounted adds volumes to a pod that no container mounts.
func withUnmounted(spec *corev1.Pod, volumes ...corev1.Volume) *corev1.Pod {
	spec.Spec.Volumes = append(spec.Spec.Volumes, volumes...)
	return spec
}
