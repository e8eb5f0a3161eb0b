package check

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/refvol/refvol/pkg/status"
)

// The labels of a namespace whose effect Label returns.
const (
	LiveLabel    = "refvol.dev/live"
	RestartLabel = "refvol.dev/restart"
)

// Policies gets policies. A client-go client implements it.
type Policies interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*admissionregistrationv1.MutatingAdmissionPolicy, error)
}

// LabelOptions are the options of Label. Label, Namespace, Creator and Policies are required.
type LabelOptions struct {
	// Label is LiveLabel or RestartLabel.
	Label     string
	Namespace string
	// Pods are the pods of the namespace.
	Pods     []corev1.Pod
	Creator  PodCreator
	Policies Policies
	// MaxVolumeSize is the plugin's --max-volume-size in bytes, for LiveLabel.
	MaxVolumeSize int64
	// Nodes are the nodes of the cluster, for RestartLabel. NodesUnread means that the caller may not list them.
	Nodes       []Node
	NodesUnread bool
}

// Label returns what a label would change in the pods of a namespace. It asks the API server to create a pod like each of them, as a dry
// run. The error is about a cluster that gives no answer.
func (c *Checker) Label(ctx context.Context, o LabelOptions) (*LabelReport, error) {
	if c.opts.Cluster == nil || o.Creator == nil || o.Policies == nil {
		return nil, errors.New("check: a cluster is required")
	}
	report := &LabelReport{
		APIVersion: status.APIVersion, Kind: labelReportKind, Namespace: o.Namespace, Label: o.Label, Policy: Yes,
		Pods: []LabelPod{}, OldNodes: oldNodes(o.Nodes), NodesUnread: o.NodesUnread,
	}
	alike := map[string]int{}
	for i := range o.Pods {
		p := &o.Pods[i]
		if isLeftOut(p) {
			continue
		}
		made := anew(p)
		key, err := likeness(p, made, o.Label)
		if err != nil {
			return nil, err
		}
		if at, ok := alike[key]; ok {
			report.Pods[at].Replicas++
			continue
		}
		if key != "" {
			alike[key] = len(report.Pods)
		}
		one := newLabelPod(p)
		if err := c.labelPod(ctx, &o, made, &one); err != nil {
			return nil, err
		}
		report.Pods = append(report.Pods, one)
	}
	if report.isUnchanged() {
		has, err := hasPolicy(ctx, o.Policies, policyOf(o.Label))
		if err != nil {
			return nil, err
		}
		report.Policy = has
	}
	return report, nil
}

// labelPod adds what a label makes of one pod.
func (c *Checker) labelPod(ctx context.Context, o *LabelOptions, made *corev1.Pod, to *LabelPod) error {
	answer, err := try(ctx, o.Creator, made, o.Label)
	switch {
	case err != nil:
		return err
	case answer.problem != "":
		to.Problems = append(to.Problems, answer.problem)
	case answer.unknown != "":
		to.NotKnown = answer.unknown
	case o.Label == RestartLabel:
		c.restartPod(made, answer.pod, o.Nodes, to)
	default:
		err = c.livePod(ctx, made, answer.pod, o.MaxVolumeSize, to)
	}
	if err != nil || answer.pod == nil || len(to.Problems) > 0 {
		return err
	}
	// What the policy can't count: it doesn't read the YAML of the pod's own volumes.
	before, err := c.problemsOf(ctx, made)
	if err != nil {
		return err
	}
	after, err := c.problemsOf(ctx, answer.pod)
	to.Problems = append(to.Problems, slices.DeleteFunc(after, func(problem string) bool {
		return slices.ContainsFunc(before, func(b string) bool { return withoutPlace(b) == withoutPlace(problem) })
	})...)
	return err
}

// withoutPlace removes the places of init containers from a text: a sidecar that is added is the first one.
func withoutPlace(problem string) string {
	return regexp.MustCompile(`initContainers\[\d+\]`).ReplaceAllString(problem, "initContainers")
}

// problemsOf returns what the plugin would refuse of a pod. It asks nothing about objects.
func (c *Checker) problemsOf(ctx context.Context, p *corev1.Pod) (problems []string, err error) {
	alone, err := New(Options{Driver: c.opts.Driver, Namespace: p.Namespace, NodeIdentity: c.opts.NodeIdentity})
	if err != nil {
		return nil, err
	}
	if err := alone.workload(ctx, Location{Namespace: p.Namespace}, podTemplate{spec: &p.Spec, at: field.NewPath("spec")}); err != nil {
		return nil, err
	}
	for _, issue := range alone.report.Problems {
		problems = append(problems, issue.Field+": "+issue.Message)
	}
	return problems, nil
}

// policyOf returns the name of the policy that changes the pods of a namespace with a label.
func policyOf(label string) string {
	if label == RestartLabel {
		return "refvol-restart"
	}
	return "refvol-live"
}

// hasPolicy reports whether a component is installed. If the caller may not know that, the answer is Unknown.
func hasPolicy(ctx context.Context, policies Policies, name string) (Answer, error) {
	_, err := policies.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return No, nil
	case apierrors.IsForbidden(err):
		return Unknown, nil
	case err != nil:
		return Unknown, fmt.Errorf("get MutatingAdmissionPolicy %s: %w", name, err)
	}
	return Yes, nil
}
