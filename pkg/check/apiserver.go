package check

import (
	"context"
	"errors"
	"fmt"
	"maps"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/refvol/refvol/pkg/authz"
	"github.com/refvol/refvol/pkg/volume"
)

// ConfigMaps gets the ConfigMaps of one namespace. A client-go client implements it.
type ConfigMaps interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.ConfigMap, error)
}

// Secrets gets the Secrets of one namespace. A client-go client implements it.
type Secrets interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*corev1.Secret, error)
}

// APIServer is a Cluster that asks an API server, with the rights of its clients. All fields are required.
type APIServer struct {
	ConfigMaps func(namespace string) ConfigMaps
	Secrets    func(namespace string) Secrets
	Reviews    authz.Reviews[*authorizationv1.SubjectAccessReview]
}

// Lookup implements Cluster.
func (s *APIServer) Lookup(ctx context.Context, ref volume.Ref) (Object, error) {
	// No object can have a name that doesn't fit into a URL. The client would return an error for it.
	if len(content.IsPathSegmentName(ref.Name))+len(content.IsPathSegmentName(ref.Namespace)) > 0 {
		return Object{Exists: No}, nil
	}
	object, err := s.get(ctx, ref)
	switch {
	case apierrors.IsNotFound(err):
		return Object{Exists: No}, nil
	case apierrors.IsForbidden(err):
		return Object{Exists: Unknown}, nil
	}
	return object, err
}

func (s *APIServer) get(ctx context.Context, ref volume.Ref) (Object, error) {
	switch ref.Kind {
	case volume.ConfigMap:
		object, err := s.ConfigMaps(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return Object{}, err
		}
		sizes := sizesOf(object.BinaryData)
		maps.Copy(sizes, sizesOf(object.Data))
		return Object{Yes, sets.KeySet(object.Data), sets.KeySet(object.BinaryData), revisionOf(object), canaryOf(object, object.Immutable), sizes}, nil
	case volume.Secret:
		object, err := s.Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return Object{}, err
		}
		return Object{Yes, sets.KeySet(object.Data), nil, revisionOf(object), canaryOf(object, object.Immutable), sizesOf(object.Data)}, nil
	}
	return Object{}, fmt.Errorf("unknown kind %q", ref.Kind)
}

func revisionOf(object metav1.Object) volume.Revision {
	return volume.Revision(object.GetAnnotations()[volume.RevisionAnnotation])
}

func canaryOf(object metav1.Object, immutable *bool) string {
	o := volume.Object{Canary: object.GetAnnotations()[volume.CanaryAnnotation], Immutable: ptr.Deref(immutable, false)}
	return o.CanaryText()
}

func sizesOf[V ~string | ~[]byte](values map[string]V) map[string]int64 {
	sizes := map[string]int64{}
	for key, value := range values {
		sizes[key] = int64(len(value))
	}
	return sizes
}

// CanI implements Cluster.
func (s *APIServer) CanI(ctx context.Context, account volume.ServiceAccount, ref volume.Ref, verb string) (Answer, error) {
	allowed, err := authz.AskAbout(s.Reviews)(ctx, account, ref, verb, volume.Token{})
	switch {
	case apierrors.IsForbidden(err), errors.Is(err, authz.ErrUndecided):
		return Unknown, nil
	case err != nil:
		return Unknown, err
	case allowed:
		return Yes, nil
	}
	return No, nil
}
