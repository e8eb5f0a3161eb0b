package main

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/pkg/fleet"
)

// findObjects returns the ConfigMaps and Secrets that a command line names in kubectl's form. With a selector it asks the API server, for
// metadata only. An error in the command line is a usageError.
func findObjects(flags *genericclioptions.ConfigFlags, selector string, args []string) ([]fleet.Object, error) {
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, &usageError{fmt.Errorf("find the kubeconfig's namespace: %w", err)}
	}
	if first := args[0]; selector == "" && !strings.Contains(strings.Join(args, ""), "/") {
		// Without a slash, the builder would ask the API server whether the type stands for several.
		args = slices.Clone(args[1:])
		for i := range args {
			args[i] = first + "/" + args[i]
		}
		if len(args) == 0 {
			args = []string{first}
		}
	}
	infos, err := resource.NewBuilder(objectTypes{flags}).Unstructured().
		NamespaceParam(namespace).DefaultNamespace().
		LabelSelectorParam(selector).ResourceTypeOrNameArgs(false, args...).
		RequireObject(false).TransformRequests(metadataOnly).Do().Infos()
	switch {
	case err != nil && isOfRequest(err):
		return nil, err
	case err != nil:
		return nil, &usageError{err}
	}
	var objects []fleet.Object
	for _, info := range infos {
		kind := info.Mapping.GroupVersionKind
		if kind.Group != "" || kind.Kind != "Secret" && kind.Kind != "ConfigMap" {
			return nil, &usageError{fmt.Errorf("%s %q: volumes show secrets and configmaps only", info.Mapping.Resource.Resource, info.Name)}
		}
		// with a selector, it is a list
		list, ok := info.Object.(*unstructured.UnstructuredList)
		if !ok {
			objects = append(objects, fleet.Object{Kind: kind.Kind, Namespace: info.Namespace, Name: info.Name})
			continue
		}
		for i := range list.Items {
			objects = append(objects, fleet.Object{Kind: kind.Kind, Namespace: list.Items[i].GetNamespace(), Name: list.Items[i].GetName()})
		}
	}
	if len(objects) == 0 {
		return nil, &usageError{&statusError{fmt.Errorf("no resources found in %s namespace", namespace), none}}
	}
	return objects, nil
}

// metadataOnly makes the API server leave values out of a list.
func metadataOnly(request *rest.Request) {
	request.SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
}

// objectTypes knows the types that volumes show. It asks the API server about other types, which are only needed for an error.
type objectTypes struct{ *genericclioptions.ConfigFlags }

// ToRESTMapper implements resource.RESTClientGetter.
func (t objectTypes) ToRESTMapper() (meta.RESTMapper, error) {
	known := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	add := func(kind string, names ...string) {
		for _, name := range names {
			known.AddSpecific(corev1.SchemeGroupVersion.WithKind(kind), corev1.SchemeGroupVersion.WithResource(strings.ToLower(kind)+"s"),
				corev1.SchemeGroupVersion.WithResource(name), meta.RESTScopeNamespace)
		}
	}
	add("ConfigMap", "cm", "configmap")
	add("Secret", "secret")
	server, err := t.ConfigFlags.ToRESTMapper()
	return &mapper{server, known}, err
}

// mapper asks known first.
type mapper struct {
	meta.RESTMapper

	known meta.RESTMapper
}

// ResourceFor implements meta.RESTMapper.
func (m *mapper) ResourceFor(of schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	if found, err := m.known.ResourceFor(of); err == nil {
		return found, nil
	}
	return m.RESTMapper.ResourceFor(of)
}

// KindFor implements meta.RESTMapper.
func (m *mapper) KindFor(of schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	if found, err := m.known.KindFor(of); err == nil {
		return found, nil
	}
	return m.RESTMapper.KindFor(of)
}

// RESTMapping implements meta.RESTMapper.
func (m *mapper) RESTMapping(of schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if found, err := m.known.RESTMapping(of, versions...); err == nil {
		return found, nil
	}
	return m.RESTMapper.RESTMapping(of, versions...)
}

// isOfRequest reports whether an error comes from the API server or the connection to it.
func isOfRequest(err error) bool {
	_, request := errors.AsType[*url.Error](err)
	var refused apierrors.APIStatus
	return request || errors.As(err, &refused)
}
