package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrStatic says that a pod is a static pod. The API server has a copy of it, the mirror pod, with another UID. Anybody may write a mirror
// pod, so it proves nothing about the static one.
var ErrStatic = errors.New("a volume of a static pod can't show what the pod's own spec names: it may have no volume and podEnv sources")

// readTimeout limits one request.
const readTimeout = 10 * time.Second

// Pods gets the pods of one namespace. A client-go client implements it.
type Pods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Pod, error)
}

// Reader reads pods from the API server. It is safe for concurrent use.
type Reader struct {
	pods func(namespace string) Pods
}

// NewReader returns a Reader. pods returns the client for a namespace.
func NewReader(pods func(namespace string) Pods) *Reader { return &Reader{pods: pods} }

// Spec is what a volume has to know about a pod's own spec.
type Spec struct {
	// Pod is the pod, with its service account.
	volume.Pod
	// Mirror means that the pod is the mirror of a static pod: see ErrStatic.
	Mirror bool
	// FSGroup is the group of the pod's volumes, or nil.
	FSGroup *int64
	// Inline holds the pod's inline CSI volumes by name.
	Inline map[string]InlineVolume
	// Refs are the objects that the spec itself names in its own fields.
	Refs []volume.Ref
	// Env, VolumeSources and MountsBelow are the package's functions of the same names, for this pod. They keep the pod's whole spec in
	// memory. Each call of the first two returns a new list. MountsBelow looks once, for all volumes.
	Env           func(container string) (env volume.Env, leftOut []string, err error)
	VolumeSources func(volume string) ([]volume.Source, error)
	// MountsBelow may be nil if no volume has a mount below it.
	MountsBelow func(volume string) []Below
}

// InlineVolume is an inline CSI volume as the pod's author wrote it.
type InlineVolume struct {
	Driver     string
	Attributes map[string]string
	ReadOnly   bool
}

// Get reads a pod by namespace, name and UID, with one request. It returns the error of the request, or a NotFound API error if the pod of
// that name has another UID. If that pod is a mirror pod, the error also wraps ErrStatic.
func (r *Reader) Get(ctx context.Context, pod volume.Pod) (*Spec, error) {
	// The log must not show the response: it has the values of variables that the pod's author wrote.
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), readTimeout)
	defer cancel()
	got, err := r.pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod, err)
	}
	if got.UID != pod.UID {
		err := error(apierrors.NewNotFound(corev1.Resource("pods"), pod.Name))
		if isMirror(got) {
			err = fmt.Errorf("%w: %w", ErrStatic, err)
		}
		return nil, fmt.Errorf("read pod %s: it has the UID %s now, not %s: %w", pod, got.UID, pod.UID, err)
	}
	return newSpec(got), nil
}

func isMirror(pod *corev1.Pod) bool {
	_, is := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

func newSpec(got *corev1.Pod) *Spec {
	below := sync.OnceValue(func() map[string][]Below { return MountsBelow(&got.Spec, field.NewPath("spec")) })
	spec := &Spec{
		Mirror: isMirror(got),
		Pod:    volume.Pod{Namespace: got.Namespace, Name: got.Name, UID: got.UID, ServiceAccount: got.Spec.ServiceAccountName},
		Inline: map[string]InlineVolume{},
		Refs:   Refs(&got.Spec, got.Namespace),
		Env: func(container string) (volume.Env, []string, error) {
			return Env(&got.Spec, got.Namespace, container)
		},
		VolumeSources: func(name string) ([]volume.Source, error) {
			return VolumeSources(&got.Spec, field.NewPath("spec"), got.Namespace, name)
		},
		MountsBelow: func(name string) []Below { return below()[name] },
	}
	if security := got.Spec.SecurityContext; security != nil {
		spec.FSGroup = security.FSGroup
	}
	for i := range got.Spec.Volumes {
		if csi := got.Spec.Volumes[i].CSI; csi != nil {
			spec.Inline[got.Spec.Volumes[i].Name] = InlineVolume{
				Driver:     csi.Driver,
				Attributes: csi.VolumeAttributes,
				ReadOnly:   csi.ReadOnly != nil && *csi.ReadOnly,
			}
		}
	}
	return spec
}
