package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/fleet"
)

// labelName returns the label that a value of --label means, or "".
func labelName(value string) string {
	switch value {
	case "restart":
		return check.RestartLabel
	case "live":
		return check.LiveLabel
	}
	return ""
}

func (o *checkOptions) validateLabel() error {
	files, namespace := o.files.ToOptions(), *o.cluster.flags.Namespace
	switch {
	case labelName(o.label) == "":
		return fmt.Errorf("--label: %q is none of restart, live", o.label)
	case len(files.Filenames) > 0 || files.Kustomize != "":
		return errors.New("--label checks the pods of a namespace, and can't be used with -f or -k")
	case namespace == "":
		return errors.New("--label needs -n NAMESPACE")
	case namespace == metav1.NamespaceSystem || namespace == o.cluster.namespace:
		return fmt.Errorf("the label %s changes nothing in namespace %s", labelName(o.label), namespace)
	}
	if size, err := resource.ParseQuantity(o.maxVolumeSize); err != nil || size.Sign() <= 0 {
		return fmt.Errorf("--max-volume-size: %q is not a positive quantity, such as 32Mi", o.maxVolumeSize)
	}
	return nil
}

// checkLabel prints what a label of a namespace would change, and fails if a pod could not start with it, or if that is not known.
func (o *checkOptions) checkLabel(ctx context.Context, c *cluster, checker *check.Checker, stdout io.Writer) error {
	size := resource.MustParse(o.maxVolumeSize)
	pods := c.client.CoreV1().Pods(*o.cluster.flags.Namespace)
	opts := check.LabelOptions{
		Label: labelName(o.label), Namespace: *o.cluster.flags.Namespace, MaxVolumeSize: size.Value(),
		Creator: pods, Policies: c.client.AdmissionregistrationV1().MutatingAdmissionPolicies(),
	}
	if err := fleet.Each(ctx, pods.List, metav1.ListOptions{}, func(pod *corev1.Pod) { opts.Pods = append(opts.Pods, *pod) }); err != nil {
		return fmt.Errorf("list the pods of namespace %s: %w", opts.Namespace, err)
	}
	if opts.Label == check.RestartLabel {
		if err := addNodes(ctx, c, &opts); err != nil {
			return err
		}
	}
	report, err := checker.Label(ctx, opts)
	if err != nil {
		return err
	}
	if err := o.print(stdout, report); err != nil {
		return err
	}
	if n := report.CannotStart(); n > 0 {
		return &statusError{fmt.Errorf("check: pods that could not start: %d", n), no}
	}
	if report.Policy == check.No {
		return fmt.Errorf("check: the component of the label %s is not installed", report.Label)
	}
	if n := report.NotKnown(); n > 0 {
		return fmt.Errorf("check: pods of which the result is not known: %d", n)
	}
	return nil
}

// addNodes adds the nodes of the cluster, or that the caller may not list them.
func addNodes(ctx context.Context, c *cluster, to *check.LabelOptions) error {
	err := fleet.Each(ctx, c.client.CoreV1().Nodes().List, metav1.ListOptions{}, func(node *corev1.Node) {
		to.Nodes = append(to.Nodes, check.Node{Name: node.Name, Kubelet: node.Status.NodeInfo.KubeletVersion, Labels: node.Labels})
	})
	if to.NodesUnread = apierrors.IsForbidden(err); err == nil || to.NodesUnread {
		return nil
	}
	return fmt.Errorf("list the nodes: %w", err)
}
