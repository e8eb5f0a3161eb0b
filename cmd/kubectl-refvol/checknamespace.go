package main

import (
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/fleet"
)

// isOfNamespace reports whether the pods of a namespace are checked, and not a manifest.
func (o *checkOptions) isOfNamespace() bool {
	files := o.files.ToOptions()
	return o.live && *o.cluster.flags.Namespace != "" && len(files.Filenames) == 0 && files.Kustomize == ""
}

func (o *checkOptions) validateNamespace() error {
	if size, err := resource.ParseQuantity(o.maxVolumeSize); err != nil || size.Sign() <= 0 {
		return fmt.Errorf("--max-volume-size: %q is not a positive quantity, such as 32Mi", o.maxVolumeSize)
	}
	if namespace := *o.cluster.flags.Namespace; namespace == metav1.NamespaceSystem || namespace == o.cluster.namespace {
		return fmt.Errorf("a live label changes nothing in namespace %s", namespace)
	}
	return nil
}

// checkNamespace prints what a live label would change, and fails if a pod could not start with it.
func (o *checkOptions) checkNamespace(ctx context.Context, c *cluster, checker *check.Checker, stdout io.Writer) error {
	namespace := *o.cluster.flags.Namespace
	size := resource.MustParse(o.maxVolumeSize)
	var pods []corev1.Pod
	if err := fleet.Each(ctx, c.client.CoreV1().Pods(namespace).List, metav1.ListOptions{}, func(pod *corev1.Pod) { pods = append(pods, *pod) }); err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	report, err := checker.Label(ctx, namespace, size.Value(), pods)
	if err != nil {
		return err
	}
	if err := o.print(stdout, report); err != nil {
		return err
	}
	if n := report.CannotStart(); n > 0 {
		return &statusError{fmt.Errorf("check: pods that could not start: %d", n), no}
	}
	return nil
}
