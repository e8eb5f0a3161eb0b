package manager

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/refvol/refvol/pkg/volume"
)

// source says how the objects of one kind are got, listed, watched and read. It is the
// one place that knows their Go types.
type source struct {
	resource schema.GroupResource
	example  runtime.Object
	get      func(ctx context.Context, namespace, name string, opts metav1.GetOptions) (*volume.Object, error)
	list     func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error)
	watch    func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	// convert returns a copy of what a volume can show of obj; it shares no memory
	// with obj, so that a small object doesn't pin the response it came in.
	convert func(obj any) (*volume.Object, error)
}

// client is what a source needs of a typed client; L is the type of its lists.
type client[P, L runtime.Object] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (P, error)
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
}

// newSource returns the source of the kind whose Go type is *T. fill copies the
// content of one object; its identity is copied here.
func newSource[T any, P interface {
	*T
	runtime.Object
	metav1.Object
}, L runtime.Object](
	kind volume.Kind, resource string, clientFor func(namespace string) client[P, L], fill func(P, *volume.Object),
) *source {
	convert := func(typed P) *volume.Object {
		o := &volume.Object{
			Ref:     volume.Ref{Kind: kind, Namespace: typed.GetNamespace(), Name: typed.GetName()},
			Version: volume.Version{UID: typed.GetUID(), ResourceVersion: typed.GetResourceVersion()},
		}
		fill(typed, o)
		return o
	}
	return &source{
		resource: schema.GroupResource{Resource: resource},
		example:  P(new(T)),
		get: func(ctx context.Context, namespace, name string, opts metav1.GetOptions) (*volume.Object, error) {
			typed, err := clientFor(namespace).Get(ctx, name, opts)
			if err != nil {
				return nil, err
			}
			return convert(typed), nil
		},
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
			return clientFor(namespace).List(ctx, opts)
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			return clientFor(namespace).Watch(ctx, opts)
		},
		convert: func(obj any) (*volume.Object, error) {
			typed, ok := obj.(P)
			if !ok {
				return nil, fmt.Errorf("unexpected object type: %T", obj)
			}
			return convert(typed), nil
		},
	}
}

func newSources(c kubernetes.Interface) map[volume.Kind]*source {
	return map[volume.Kind]*source{
		volume.ConfigMap: newSource(volume.ConfigMap, "configmaps",
			func(namespace string) client[*corev1.ConfigMap, *corev1.ConfigMapList] {
				return c.CoreV1().ConfigMaps(namespace)
			},
			fillFromConfigMap),
		volume.Secret: newSource(volume.Secret, "secrets",
			func(namespace string) client[*corev1.Secret, *corev1.SecretList] {
				return c.CoreV1().Secrets(namespace)
			},
			fillFromSecret),
	}
}

func fillFromConfigMap(cm *corev1.ConfigMap, o *volume.Object) {
	o.Immutable = isTrue(cm.Immutable)
	o.Data = make(map[string][]byte, len(cm.Data))
	for k, v := range cm.Data {
		o.Data[k] = []byte(v)
	}
	o.BinaryData = cloneData(cm.BinaryData)
}

func fillFromSecret(s *corev1.Secret, o *volume.Object) {
	o.Immutable = isTrue(s.Immutable)
	o.Data = cloneData(s.Data)
}

func isTrue(b *bool) bool { return b != nil && *b }

func cloneData(m map[string][]byte) map[string][]byte {
	out := make(map[string][]byte, len(m))
	for k, v := range m {
		out[k] = bytes.Clone(v)
	}
	return out
}

// trim drops in place what no volume shows and what is often larger than the
// object itself: its managed fields and its annotations, the last applied
// configuration among them. It never fails: the reflector would log the object,
// values included, with the error.
func trim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return obj, nil
}
