// Package podspec reads a pod's own spec from the API server: what its containers have in
// their environment, and which inline volumes it has.
//
// It owns the request. It must not know what becomes of the answer; pkg/podref owns what an
// environment is made of.
package podspec

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/clientlog"
	"github.com/refvol/refvol/pkg/podref"
	"github.com/refvol/refvol/pkg/volume"
)

// ErrUnusable reports that a pod's spec has no such container, or variables that name
// nothing.
var ErrUnusable = errors.New("the pod's spec can't be used")

// readTimeout bounds one request.
const readTimeout = 10 * time.Second

// Pods gets the pods of one namespace. A client-go client is one.
type Pods interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Pod, error)
}

// Reader reads pods from the API server. It is safe for concurrent use.
type Reader struct {
	pods func(namespace string) Pods
}

// NewReader returns a Reader that gets pods by what pods returns for their namespace.
func NewReader(pods func(namespace string) Pods) *Reader { return &Reader{pods: pods} }

// Pod is what a volume has to know of a pod's own spec.
type Pod struct {
	// Pod is the pod, with its service account.
	volume.Pod
	// FSGroup is the group of the pod's volumes, nil for none.
	FSGroup *int64
	// Inline holds the pod's inline CSI volumes by name.
	Inline map[string]InlineVolume
	// Env is podref.Env of a container of the pod; ErrUnusable wraps an error of that.
	Env func(container string) (env volume.Env, leftOut []string, err error)
}

// InlineVolume is an inline CSI volume as the pod's author wrote it.
type InlineVolume struct {
	Driver     string
	Attributes map[string]string
	ReadOnly   bool
}

// Get reads a pod, with one request, by its namespace, name and UID. The error is a NotFound
// API error also if the pod of that name has another UID; any other is that of the request.
func (r *Reader) Get(ctx context.Context, pod volume.Pod) (*Pod, error) {
	// The response holds what the pod's author wrote as values of variables.
	ctx, cancel := context.WithTimeout(clientlog.Context(ctx), readTimeout)
	defer cancel()
	got, err := r.pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s: %w", pod, err)
	}
	if got.UID != pod.UID {
		notFound := apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
		return nil, fmt.Errorf("read pod %s: it has the UID %s now, not %s: %w", pod, got.UID, pod.UID, notFound)
	}
	return newPod(got), nil
}

func newPod(got *corev1.Pod) *Pod {
	pod := &Pod{
		Pod:    volume.Pod{Namespace: got.Namespace, Name: got.Name, UID: got.UID, ServiceAccount: got.Spec.ServiceAccountName},
		Inline: map[string]InlineVolume{},
		Env: func(container string) (volume.Env, []string, error) {
			env, leftOut, err := podref.Env(&got.Spec, got.Namespace, container)
			if err != nil {
				return volume.Env{}, nil, fmt.Errorf("%w: %w", ErrUnusable, err)
			}
			return env, leftOut, nil
		},
	}
	if security := got.Spec.SecurityContext; security != nil {
		pod.FSGroup = security.FSGroup
	}
	for i := range got.Spec.Volumes {
		if csi := got.Spec.Volumes[i].CSI; csi != nil {
			pod.Inline[got.Spec.Volumes[i].Name] = InlineVolume{
				Driver:     csi.Driver,
				Attributes: csi.VolumeAttributes,
				ReadOnly:   csi.ReadOnly != nil && *csi.ReadOnly,
			}
		}
	}
	return pod
}
