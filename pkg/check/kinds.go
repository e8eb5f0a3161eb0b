package check

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// podTemplate is the part of a manifest that describes pods.
type podTemplate struct {
	spec *corev1.PodSpec
	at   *field.Path
	// text is the whole manifest.
	text []byte
}

// supported returns the supported version of each kind that has pods.
func supported() map[schema.GroupKind]string {
	return map[schema.GroupKind]string{
		{Kind: "Pod"}:                        "v1",
		{Kind: "PodTemplate"}:                "v1",
		{Kind: "ReplicationController"}:      "v1",
		{Group: "apps", Kind: "Deployment"}:  "v1",
		{Group: "apps", Kind: "StatefulSet"}: "v1",
		{Group: "apps", Kind: "DaemonSet"}:   "v1",
		{Group: "apps", Kind: "ReplicaSet"}:  "v1",
		{Group: "batch", Kind: "Job"}:        "v1",
		{Group: "batch", Kind: "CronJob"}:    "v1",
	}
}

// kindOf reports whether a kind has pods. It returns an error for a kind in one of Kubernetes' own groups that no API server of this
// release has: it is misspelled, or was removed. Kinds of other groups are not judged.
func kindOf(gvk schema.GroupVersionKind) (hasPods bool, err error) {
	version, ok := supported()[gvk.GroupKind()]
	switch {
	case ok && version != gvk.Version:
		return false, fmt.Errorf("apiVersion %s is not supported; use %s", gvk.GroupVersion(), schema.GroupVersion{Group: gvk.Group, Version: version})
	case ok:
		return true, nil
	case gvk.Group == "extensions":
		return false, fmt.Errorf("apiVersion %s was removed from Kubernetes: use the kind's own group, such as apps/v1", gvk.GroupVersion())
	case !scheme.Scheme.IsGroupRegistered(gvk.Group) || scheme.Scheme.Recognizes(gvk):
		return false, nil
	}
	return false, fmt.Errorf("there is no such kind in %s: it is misspelled, or was removed from Kubernetes", gvk.GroupVersion())
}

// listed returns the kind of the items of a list of one kind, such as PodList. It returns false for anything else.
func listed(gvk schema.GroupVersionKind) (schema.GroupVersionKind, bool) {
	item, isList := strings.CutSuffix(gvk.Kind, "List")
	if !isList || item == "" {
		return gvk, false
	}
	_, hasPods := supported()[schema.GroupKind{Group: gvk.Group, Kind: item}]
	of := gvk.GroupVersion().WithKind(item)
	return of, hasPods || scheme.Scheme.Recognizes(of)
}

// foreignTemplate returns the pod template of a kind that is not Kubernetes' own, if it is at the usual place. Fields that a pod doesn't
// have are ignored.
func foreignTemplate(m *manifest) (podTemplate, bool) {
	if !m.isForeign {
		return podTemplate{}, false
	}
	var object struct {
		Spec struct {
			Template struct {
				Spec *corev1.PodSpec `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(m.text, &object); err != nil || object.Spec.Template.Spec == nil || len(object.Spec.Template.Spec.Containers) == 0 {
		return podTemplate{}, false
	}
	return podTemplate{spec: object.Spec.Template.Spec, at: field.NewPath("spec", "template", "spec")}, true
}

// templateOf returns the part of a supported object that describes pods, and whether there is one.
func templateOf(object runtime.Object) (podTemplate, bool) {
	template := field.NewPath("spec", "template", "spec")
	switch o := object.(type) {
	case *corev1.Pod:
		return podTemplate{spec: &o.Spec, at: field.NewPath("spec")}, true
	case *corev1.PodTemplate:
		return podTemplate{spec: &o.Template.Spec, at: field.NewPath("template", "spec")}, true
	case *corev1.ReplicationController:
		if o.Spec.Template == nil {
			return podTemplate{}, false
		}
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *appsv1.Deployment:
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *appsv1.StatefulSet:
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *appsv1.DaemonSet:
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *appsv1.ReplicaSet:
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *batchv1.Job:
		return podTemplate{spec: &o.Spec.Template.Spec, at: template}, true
	case *batchv1.CronJob:
		return podTemplate{spec: &o.Spec.JobTemplate.Spec.Template.Spec, at: field.NewPath("spec", "jobTemplate", "spec", "template", "spec")}, true
	}
	return podTemplate{}, false
}
