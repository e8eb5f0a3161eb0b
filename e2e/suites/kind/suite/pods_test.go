package suite

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

// mountDir is where a pod's volumes are, each by its name.
const mountDir = "/volumes/"

// pod is a pod that has been created.
type pod struct {
	*namespace
	*corev1.Pod
}

// newPod describes a pod with one container that waits, as nobody in particular,
// with all volumes below mountDir.
func newPod(name string, volumes ...corev1.Volume) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(5)),
			AutomountServiceAccountToken:  new(false),
			SecurityContext:               &corev1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000))},
			Containers:                    []corev1.Container{newContainer("probe", volumes)},
			Volumes:                       volumes,
		},
	}
}

func newContainer(name string, volumes []corev1.Volume) corev1.Container {
	container := corev1.Container{
		Name:            name,
		Image:           os.Getenv("REFVOL_PROBE_IMAGE"),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Args:            []string{"sleep"},
	}
	for _, v := range volumes {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: v.Name, MountPath: mountDir + v.Name})
	}
	return container
}

// attributes are a volume's, as its author writes them.
type attributes map[string]string

// refvol describes a volume of the driver, and ofDriver one of another plugin.
func refvol(name string, a attributes) corev1.Volume { return ofDriver(driver, name, a) }

func ofDriver(driver, name string, a attributes) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{Driver: driver, ReadOnly: new(true), VolumeAttributes: a},
	}}
}

// create creates a pod and doesn't wait for it.
func (n *namespace) create(spec *corev1.Pod) *pod {
	n.t.Helper()
	created := must.Get(n.client.CoreV1().Pods(n.name).Create(n.t.Context(), spec, metav1.CreateOptions{}))(n.t)
	return &pod{n, created}
}

// start creates a pod and waits until its containers run.
func (n *namespace) start(spec *corev1.Pod) *pod {
	n.t.Helper()
	p := n.create(spec)
	p.awaitReady()
	return p
}

// awaitReady waits until the pod is ready, and learns its node.
func (p *pod) awaitReady() {
	p.t.Helper()
	eventually(p.t, podTimeout, "pod "+p.Name+" ready", func(ctx context.Context) error {
		now, err := p.now(ctx)
		if err != nil {
			return err
		}
		p.Pod = now
		if !ready(now) {
			return fmt.Errorf("it is %s", now.Status.Phase)
		}
		return nil
	})
}

// awaitReady waits until all pods are ready.
func awaitReady(pods ...*pod) {
	for _, p := range pods {
		p.awaitReady()
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// beginDelete deletes the pod, at once if seconds are 0, and doesn't wait.
func (p *pod) beginDelete(seconds ...int64) {
	p.t.Helper()
	var opts metav1.DeleteOptions
	if len(seconds) > 0 {
		opts.GracePeriodSeconds = &seconds[0]
	}
	must.Do(p.t, p.client.CoreV1().Pods(p.Namespace).Delete(p.t.Context(), p.Name, opts))
}

// delete deletes the pod and waits until the kubelet has let go of it.
func (p *pod) delete() {
	p.t.Helper()
	p.beginDelete()
	p.awaitGone()
}

func (p *pod) awaitGone() {
	p.t.Helper()
	eventually(p.t, podTimeout, "pod "+p.Name+" gone", func(ctx context.Context) error {
		now, err := p.now(ctx)
		if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
			return nil
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}

// now returns the pod as it is.
func (p *pod) now(ctx context.Context) (*corev1.Pod, error) {
	return p.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
}

// volumeID returns the id that the kubelet makes for an inline volume.
func (p *pod) volumeID(volume string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(p.UID)+volume)))
}

// volumeIDs returns the ids of the pod's volumes of the driver.
func (p *pod) volumeIDs() []string {
	var ids []string
	for _, v := range p.Spec.Volumes {
		if v.CSI != nil {
			ids = append(ids, p.volumeID(v.Name))
		}
	}
	return ids
}

// phase returns the pod's phase now.
func (p *pod) phase(t *testing.T) corev1.PodPhase {
	t.Helper()
	now := must.Get(p.now(t.Context()))(t)
	return now.Status.Phase
}

// nodeIdentityDriver is that of the third plugin that the runner installs, which reads
// objects with its node's rights.
const nodeIdentityDriver = "node-identity.refvol.dev"

// asNode describes a volume of the driver that reads as the node, which shows what the pod's own
// volume shown names.
func asNode(name, shown string) corev1.Volume {
	return ofDriver(nodeIdentityDriver, name, attributes{"volume": shown})
}

// withUnmounted adds volumes to a pod that no container mounts.
func withUnmounted(spec *corev1.Pod, volumes ...corev1.Volume) *corev1.Pod {
	spec.Spec.Volumes = append(spec.Spec.Volumes, volumes...)
	return spec
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
