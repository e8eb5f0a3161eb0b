package harness

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pods is where the pods of volumes are kept; *controlplane.ControlPlane is one.
type Pods interface {
	// Pod returns the pod of a name, nil if there is none.
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// PutPod stores a pod with the UID that it has.
	PutPod(ctx context.Context, pod *corev1.Pod) error
}

// StorePod has the API server know the volume's pod, with the volume in its spec, as the plugin reads it there. A pod
// that exists gets the volume added. Publish does it too.
func (p *Plugin) StorePod(ctx context.Context, v *Volume) error {
	if p.opts.Pods == nil || v.Unknown {
		return nil
	}
	key := v.UID + "/" + v.Name
	// The String of an API object takes quadratic time for many items.
	spec, err := json.Marshal([]any{v.Attributes, v.ServiceAccount, v.Beside})
	if err != nil {
		return err
	}
	if stored, ok := p.stored.Load(key); ok && stored == string(spec) {
		return nil
	}
	p.storing.Lock() // several volumes may be of one pod
	defer p.storing.Unlock()
	pod, err := p.opts.Pods.Pod(ctx, v.Namespace, v.Pod)
	if err != nil {
		return err
	}
	if pod == nil || pod.UID != types.UID(v.UID) {
		pod = newPod(p.opts.NodeName, v.Namespace, v.Pod, types.UID(v.UID))
	}
	v.addTo(&pod.Spec)
	if err := p.opts.Pods.PutPod(ctx, pod); err != nil {
		return err
	}
	p.stored.Store(key, string(spec))
	return nil
}

// newPod returns a pod on a node, as PutPod takes it.
func newPod(node, namespace, name string, uid types.UID) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid, CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{
			NodeName:      node,
			RestartPolicy: corev1.RestartPolicyAlways,
			DNSPolicy:     corev1.DNSClusterFirst,
			Containers:    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// addTo has a pod's spec say what the volume says, and have the volumes beside it.
func (v *Volume) addTo(spec *corev1.PodSpec) {
	spec.ServiceAccountName = v.ServiceAccount
	readOnly := true
	volumes := append(slices.Clone(v.Beside), corev1.Volume{
		Name: v.Name,
		VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: DriverName, ReadOnly: &readOnly, VolumeAttributes: maps.Clone(v.Attributes),
		}},
	})
	for _, volume := range volumes {
		spec.Volumes = append(slices.DeleteFunc(spec.Volumes, func(other corev1.Volume) bool { return other.Name == volume.Name }), volume)
	}
}
