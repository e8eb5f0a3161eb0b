package manager

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/volume"
)

// source says how the objects of one kind are got, listed, watched and read. It is the
// one place that knows their Go types.
type source struct {
	resource schema.GroupResource
	kind     volume.Kind
	get      func(ctx context.Context, namespace, name string, opts metav1.GetOptions) (*volume.Object, error)
	// list returns the object of a list that is ref, nil if there is none, and the list's
	// resourceVersion.
	list func(ctx context.Context, ref volume.Ref, opts metav1.ListOptions) (*volume.Object, string, error)
	// watch returns the body of the answer, a stream of events.
	watch func(ctx context.Context, namespace string, opts metav1.ListOptions) (io.ReadCloser, error)
	// convert returns a copy of what a volume can show of obj; it shares no memory
	// with obj, so that a small object doesn't pin the response it came in.
	convert func(obj any) (*volume.Object, error)
}

// newSource returns the source of the kind whose Go type is *T, and that of its lists *L,
// which items returns the items of. fill copies the content of one object; its identity is
// copied here.
//
// The requests are those of a typed client, but for one thing: that repeats what fails up
// to ten times by itself, as late as a Retry-After says, which may be any time. Here a
// failure is returned at once, since whoever sends requests paces them.
func newSource[T, L any, P interface {
	*T
	runtime.Object
	metav1.Object
}, PL interface {
	*L
	runtime.Object
	metav1.ListInterface
}](
	kind volume.Kind, resource string, c rest.Interface, items func(PL) []T, fill func(P, *volume.Object),
) *source {
	request := func(namespace string) *rest.Request {
		return c.Get().Namespace(namespace).Resource(resource).MaxRetries(0)
	}
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
		kind:     kind,
		get: func(ctx context.Context, namespace, name string, opts metav1.GetOptions) (*volume.Object, error) {
			typed := P(new(T))
			err := request(namespace).Name(name).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx).Into(typed)
			if err != nil {
				return nil, err
			}
			return convert(typed), nil
		},
		list: func(ctx context.Context, ref volume.Ref, opts metav1.ListOptions) (*volume.Object, string, error) {
			list := PL(new(L))
			if err := request(ref.Namespace).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx).Into(list); err != nil {
				return nil, "", err
			}
			for _, typed := range items(list) {
				// A real API server sends no other, a fake one that knows no field
				// selectors may.
				if obj := convert(&typed); obj.Ref == ref {
					return obj, list.GetResourceVersion(), nil
				}
			}
			return nil, list.GetResourceVersion(), nil
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (io.ReadCloser, error) {
			opts.Watch = true
			return request(namespace).VersionedParams(&opts, scheme.ParameterCodec).Timeout(timeoutOf(opts)).Stream(ctx)
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

// timeoutOf returns how long the server is to take at most, 0 for its own choice.
func timeoutOf(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}

// newSources returns the sources of both kinds. c is a client of core/v1.
func newSources(c rest.Interface) map[volume.Kind]*source {
	return map[volume.Kind]*source{
		volume.ConfigMap: newSource(volume.ConfigMap, "configmaps", c,
			func(l *corev1.ConfigMapList) []corev1.ConfigMap { return l.Items }, fillFromConfigMap),
		volume.Secret: newSource(volume.Secret, "secrets", c,
			func(l *corev1.SecretList) []corev1.Secret { return l.Items }, fillFromSecret),
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
