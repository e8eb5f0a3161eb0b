package apiclient

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Resource sends the requests for objects of one kind, with the Go type *T, in one namespace. Its methods are those of client-go's typed
// clients. It is safe for concurrent use.
type Resource[T any, P interface {
	*T
	runtime.Object
}] struct {
	client     rest.Interface
	parameters runtime.ParameterCodec
	name       string
	namespace  string
}

// Get returns an object. The error is that of the request. If the server has answered, it is an API error (see apimachinery's api/errors).
func (r Resource[T, P]) Get(ctx context.Context, name string, opts metav1.GetOptions) (P, error) {
	return r.do(ctx, r.client.Get().Name(name), &opts)
}

// Create creates an object and returns it as the API server stores it. Errors are as with Get.
func (r Resource[T, P]) Create(ctx context.Context, obj P, opts metav1.CreateOptions) (P, error) {
	return r.do(ctx, r.client.Post().Body(obj), &opts)
}

// Patch changes an object and returns it as the API server stores it. Errors are as with Get.
func (r Resource[T, P]) Patch(ctx context.Context, name string, form types.PatchType, patch []byte, opts metav1.PatchOptions, subresources ...string) (P, error) {
	return r.do(ctx, r.client.Patch(form).Name(name).SubResource(subresources...).Body(patch), &opts)
}

func (r Resource[T, P]) do(ctx context.Context, request *rest.Request, opts runtime.Object) (P, error) {
	out := P(new(T))
	err := request.MaxRetries(0).NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).
		VersionedParams(opts, r.parameters).Do(ctx).Into(out)
	if err != nil {
		return nil, err
	}
	return out, nil
}
