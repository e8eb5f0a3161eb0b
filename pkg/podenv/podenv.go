// Package podenv reads from the API server what the containers of a pod have in their
// environment.
//
// It owns the request. It must not know what becomes of the answer; pkg/podref owns what
// of a pod's spec it is made of.
package podenv

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

// Reader reads the environment of containers from the API server. It is safe for
// concurrent use.
type Reader struct {
	pods func(namespace string) Pods
}

// NewReader returns a Reader that gets pods by what pods returns for their namespace.
func NewReader(pods func(namespace string) Pods) *Reader { return &Reader{pods: pods} }

// Env reads a pod, with one request, and returns what podref.Env says of its containers;
// ErrUnusable wraps an error of that. The error is a NotFound API error also if the pod of
// that name has another UID; any other is that of the request.
func (r *Reader) Env(ctx context.Context, pod volume.Pod) (func(container string) (env volume.Env, leftOut []string, err error), error) {
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
	return func(container string) (volume.Env, []string, error) {
		env, leftOut, err := podref.Env(&got.Spec, pod.Namespace, container)
		if err != nil {
			return volume.Env{}, nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
		return env, leftOut, nil
	}, nil
}
