package manager

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/apiclient"
	"github.com/refvol/refvol/pkg/volume"
)

// source sends the requests for the objects of one kind.
//
// client-go's typed clients repeat a failed request up to ten times, after any delay that a Retry-After names. A source returns the failure
// at once, and package requests decides when the next request is sent.
type source struct {
	client   *apiclient.Client
	resource schema.GroupResource
	// events decodes the objects in watch events.
	events runtime.Decoder
}

// newSources returns the sources of all kinds.
func newSources(c *apiclient.Client) map[volume.Kind]*source {
	events := protobuf.NewSerializer(c.Scheme(), c.Scheme())
	sources := map[volume.Kind]*source{}
	for _, kind := range volume.Kinds() {
		sources[kind] = &source{c, corev1.Resource(kind.Resource()), events}
	}
	return sources
}

func (s *source) request(namespace string, opts runtime.Object) *rest.Request {
	return s.client.Core().Get().Namespace(namespace).Resource(s.resource.Resource).
		MaxRetries(0).VersionedParams(opts, s.client.ParameterCodec())
}

func (s *source) get(ctx context.Context, ref volume.Ref, opts metav1.GetOptions) (*volume.Object, error) {
	obj, err := s.request(ref.Namespace, &opts).Name(ref.Name).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	return convert(obj)
}

// list returns the object of a list that matches ref, or nil, and the list's resourceVersion.
func (s *source) list(ctx context.Context, ref volume.Ref, opts metav1.ListOptions) (*volume.Object, string, error) {
	opts.FieldSelector = selector(ref)
	list, err := s.request(ref.Namespace, &opts).Do(ctx).Get()
	if err != nil {
		return nil, "", err
	}
	of, err := meta.ListAccessor(list)
	if err != nil {
		return nil, "", err
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return nil, "", err
	}
	for _, item := range items {
		obj, err := convert(item)
		if err != nil {
			return nil, "", err
		}
		if obj.Ref == ref { // a real API server sends no other object
			return obj, of.GetResourceVersion(), nil
		}
	}
	return nil, of.GetResourceVersion(), nil
}

// watch returns the stream of a watch of one object, in protobuf, which every API server supports for these kinds. It asks for no
// compression: Kubernetes 1.37 would compress a watch that starts with the state, and each idle watch would keep the buffers of its
// decompressor.
func (s *source) watch(ctx context.Context, ref volume.Ref, opts metav1.ListOptions) (io.ReadCloser, error) {
	opts.Watch, opts.FieldSelector = true, selector(ref)
	return s.request(ref.Namespace, &opts).
		SetHeader("Accept", runtime.ContentTypeProtobuf+";stream=watch").SetHeader("Accept-Encoding", "identity").Stream(ctx)
}

func selector(ref volume.Ref) string { return "metadata.name=" + fields.EscapeValue(ref.Name) }

// convert returns what a volume can show of a ConfigMap or a Secret. It takes the values without a copy, because the decoder made them only
// for obj.
func convert(obj runtime.Object) (*volume.Object, error) {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		data := make(map[string][]byte, len(o.Data))
		for key, value := range o.Data {
			data[key] = unsafe.Slice(unsafe.StringData(value), len(value)) // nobody changes the values of an Object.
		}
		return &volume.Object{
			Ref:       volume.Ref{Kind: volume.ConfigMap, Namespace: o.Namespace, Name: o.Name},
			Version:   volume.Version{UID: o.UID, ResourceVersion: o.ResourceVersion},
			Immutable: isTrue(o.Immutable), Rollout: kept(o.Annotations, volume.RolloutAnnotation, maxShare),
			Revision: volume.Revision(kept(o.Annotations, volume.RevisionAnnotation, maxRevision)),
			Canary:   kept(o.Annotations, volume.CanaryAnnotation, maxShare),
			Data:     data, BinaryData: o.BinaryData,
		}, nil
	case *corev1.Secret:
		return &volume.Object{
			Ref:       volume.Ref{Kind: volume.Secret, Namespace: o.Namespace, Name: o.Name},
			Version:   volume.Version{UID: o.UID, ResourceVersion: o.ResourceVersion},
			Immutable: isTrue(o.Immutable), Rollout: kept(o.Annotations, volume.RolloutAnnotation, maxShare),
			Revision: volume.Revision(kept(o.Annotations, volume.RevisionAnnotation, maxRevision)),
			Canary:   kept(o.Annotations, volume.CanaryAnnotation, maxShare),
			Data:     o.Data,
		}, nil
	}
	return nil, fmt.Errorf("unexpected object type: %T", obj)
}

// maxShare and maxRevision limit the annotations in bytes. Valid values are shorter, also if a part of a character is cut off.
const (
	maxShare    = 32
	maxRevision = volume.MaxRevision + utf8.UTFMax
)

// kept returns a copy of an annotation that is kept, or of its beginning, so that the memory of the others is freed.
func kept(annotations map[string]string, name string, limit int) string {
	text := annotations[name]
	return strings.Clone(strings.ToValidUTF8(text[:min(len(text), limit)], ""))
}

func isTrue(b *bool) bool { return b != nil && *b }
