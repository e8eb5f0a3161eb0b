package check

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// podTemplate is the part of a manifest that becomes pods.
type podTemplate struct {
	spec *corev1.PodSpec
	at   *field.Path
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

// templateOf returns the part of a supported object that becomes pods, and whether it has
// one.
func templateOf(object runtime.Object) (podTemplate, bool) {
	template := field.NewPath("spec", "template", "spec")
	switch o := object.(type) {
	case *corev1.Pod:
		return podTemplate{&o.Spec, field.NewPath("spec")}, true
	case *corev1.PodTemplate:
		return podTemplate{&o.Template.Spec, field.NewPath("template", "spec")}, true
	case *corev1.ReplicationController:
		if o.Spec.Template == nil {
			return podTemplate{}, false
		}
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *appsv1.Deployment:
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *appsv1.StatefulSet:
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *appsv1.DaemonSet:
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *appsv1.ReplicaSet:
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *batchv1.Job:
		return podTemplate{&o.Spec.Template.Spec, template}, true
	case *batchv1.CronJob:
		return podTemplate{&o.Spec.JobTemplate.Spec.Template.Spec, field.NewPath("spec", "jobTemplate", "spec", "template", "spec")}, true
	}
	return podTemplate{}, false
}
