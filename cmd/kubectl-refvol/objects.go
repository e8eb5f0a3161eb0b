package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"

	"github.com/refvol/refvol/pkg/fleet"
)

// find returns the ConfigMaps and Secrets that a command line names in kubectl's form. With a selector it asks the API server, for
// metadata only. An error in the command line is a usageError.
func (c *cluster) find(ctx context.Context, selector string, args []string) ([]fleet.Object, error) {
	if selector == "" {
		return namedObjects(c.opts.flags, args)
	}
	if len(args) > 1 || strings.Contains(args[0], "/") {
		return nil, &usageError{errors.New("selectors cannot be used when objects are named: -l takes TYPE, or TYPE,TYPE")}
	}
	names := strings.Split(args[0], ",")
	for i := range names {
		names[i] += "/any"
	}
	types, err := namedObjects(c.opts.flags, names)
	if err != nil {
		return nil, err
	}
	var all []fleet.Object
	for _, of := range types {
		err := fleet.Each(ctx, c.objects(of).List, metav1.ListOptions{LabelSelector: selector}, func(found *metav1.PartialObjectMetadata) {
			all = append(all, fleet.Object{Kind: of.Kind, Namespace: found.Namespace, Name: found.Name})
		})
		if err != nil {
			return nil, fmt.Errorf("list the metadata of %ss with the labels %q in namespace %s: %w", of.Kind, selector, of.Namespace, err)
		}
	}
	if len(all) == 0 {
		return nil, &usageError{&statusError{fmt.Errorf("no resources found in %s namespace", types[0].Namespace), none}}
	}
	return all, nil
}

// namedObjects returns the ConfigMaps and Secrets that a command line names in kubectl's form. It sends no request. Its errors are
// usageErrors.
func namedObjects(flags *genericclioptions.ConfigFlags, args []string) ([]fleet.Object, error) {
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, &usageError{fmt.Errorf("find the kubeconfig's namespace: %w", err)}
	}
	if first := args[0]; !strings.Contains(strings.Join(args, ""), "/") {
		// Without a slash, the builder would ask the API server whether the type stands for several.
		args = slices.Clone(args[1:])
		for i := range args {
			args[i] = first + "/" + args[i]
		}
		if len(args) == 0 {
			return nil, &usageError{errors.New("resource(s) were provided, but no name was specified")}
		}
	}
	infos, err := resource.NewBuilder(objectTypes{flags}).Unstructured().
		NamespaceParam(namespace).DefaultNamespace().
		ResourceTypeOrNameArgs(false, args...).RequireObject(false).Do().Infos()
	if err != nil {
		return nil, &usageError{err}
	}
	objects := make([]fleet.Object, 0, len(infos))
	for _, info := range infos {
		objects = append(objects, fleet.Object{Kind: info.Mapping.GroupVersionKind.Kind, Namespace: info.Namespace, Name: info.Name})
	}
	return objects, nil
}

// objectTypes knows the types that volumes show, and no others, so that it sends no request.
type objectTypes struct{ *genericclioptions.ConfigFlags }

// ToRESTMapper implements resource.RESTClientGetter.
func (objectTypes) ToRESTMapper() (meta.RESTMapper, error) {
	known := meta.NewDefaultRESTMapper([]schema.GroupVersion{corev1.SchemeGroupVersion})
	add := func(kind string, names ...string) {
		for _, name := range names {
			known.AddSpecific(corev1.SchemeGroupVersion.WithKind(kind), corev1.SchemeGroupVersion.WithResource(strings.ToLower(kind)+"s"),
				corev1.SchemeGroupVersion.WithResource(name), meta.RESTScopeNamespace)
		}
	}
	add("ConfigMap", "cm", "configmap")
	add("Secret", "secret")
	return knownTypes{known}, nil
}

// knownTypes says in its errors which types there are.
type knownTypes struct{ meta.RESTMapper }

// RESTMapping implements meta.RESTMapper.
func (k knownTypes) RESTMapping(of schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	mapping, err := k.RESTMapper.RESTMapping(of, versions...)
	if err != nil {
		return nil, fmt.Errorf("%q: volumes show secrets and configmaps only", of)
	}
	return mapping, nil
}
