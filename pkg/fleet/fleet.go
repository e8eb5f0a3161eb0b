// Package fleet gets the reports of all plugins in a cluster, and finds out whether all volumes show an object's current version.
//
// It owns which pods use the driver, which nodes have to answer, how many are asked at the same time and for how long, what counts as
// showing a version, and the format of that answer. It must not know how a plugin is reached.
package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/pkg/status"
)

// Options says which plugins there are and how to ask one. All fields except Settle are required. AtOnce and Timeout must be positive. Pod,
// NodeReady and Fetch may be called from up to AtOnce goroutines at the same time, the other functions from one.
type Options struct {
	// Driver is the name of the CSI driver.
	Driver string
	// CSINodes lists the CSINodes of the cluster, Plugins the pods of the plugin, and Using the pods with a volume of the driver.
	CSINodes func(context.Context) ([]storagev1.CSINode, error)
	Plugins  func(context.Context) ([]corev1.Pod, error)
	Using    func(context.Context) ([]Pod, error)
	// Pod gets one of the pods of Using again. It returns nil if the pod is gone or has ended.
	Pod func(ctx context.Context, namespace, name string) (*Pod, error)
	// NodeReady reports whether the kubelet of a node is ready. The error says why that isn't known.
	NodeReady func(ctx context.Context, node string) (bool, error)
	// Fetch gets the report of a plugin's pod about some objects, or about all objects if there are none, as status.Fetch does. If nothing
	// listens on the plugin's port, the error must wrap ECONNREFUSED. A Forbidden API error ends the survey, because all plugins need the
	// same right.
	Fetch func(ctx context.Context, pod string, objects []status.ObjectKey) (*status.Report, error)
	// AtOnce limits the plugins that are asked at the same time. Timeout limits the answer of each.
	AtOnce  int
	Timeout time.Duration
	// Settle is the time between the two looks with which Collect finds pods that wait on a node without a plugin. If it is zero, Collect
	// does not distinguish such pods from others.
	Settle time.Duration
}

// Survey is what all plugins of a cluster reported at about the same time.
type Survey struct {
	// Nodes are the nodes that have to answer, by name: those whose CSINode lists the driver, those whose kubelet has accepted a pod with a
	// volume of the driver, and those that run a plugin.
	Nodes []Node
	// NotAccepted are the pods with a volume of the driver that no kubelet has accepted. They don't see any version yet, and their nodes
	// may not exist.
	NotAccepted []Pod
}

// Node is what is known about one node.
type Node struct {
	Name string
	// Plugin is the name of the plugin's pod, or "".
	Plugin string
	pod    *corev1.Pod
	// Problem says why the report is missing or not reliable. It is nil if there is no problem.
	Problem *Problem
	// Report is the plugin's report, or nil.
	Report *status.Report
	// Pods are the pods with a volume of the driver that the kubelet has accepted and that have not ended.
	Pods []Pod
	// isWaiting means that the pods wait for a plugin, and that nothing was ever mounted for them.
	isWaiting bool
}

// Problem says why a node's report is missing or not reliable.
type Problem struct {
	Reason Reason `json:"reason"`
	// Message is for people. It may hold text from another plugin, so print it with status.Printable.
	Message string `json:"message"`
}

// Reason is the kind of a Problem, for tools.
type Reason string

// The reasons.
const (
	// NodeNotReady: the node is not ready, and one of the next three reasons applies. There may be a report.
	NodeNotReady Reason = "NodeNotReady"
	// NoPlugin: the node has no pod of the plugin.
	NoPlugin Reason = "NoPlugin"
	// NotReady: the plugin's pod is not ready. There may be a report.
	NotReady Reason = "NotReady"
	// Unreachable: the plugin did not answer in time, or at all.
	Unreachable Reason = "Unreachable"
	// OtherRelease: the plugin's release has no reports, or reports in another format.
	OtherRelease Reason = "OtherRelease"
	// OtherPlugin: the pod serves another driver or node.
	OtherPlugin Reason = "OtherPlugin"
)

// Collect lists the nodes and asks their plugins about some objects, or about all objects if none are given. Then the reports may leave out
// what does not concern these objects. Collect returns the error of a list, a Forbidden error if the caller lacks the right to ask
// plugins, or the cause of a cancelled ctx. A plugin that does not answer is a Problem of its node, also if ctx reached its deadline.
func (o *Options) Collect(ctx context.Context, objects ...Object) (*Survey, error) {
	csiNodes, err := o.CSINodes(ctx)
	if err != nil {
		return nil, err
	}
	plugins, err := o.Plugins(ctx)
	if err != nil {
		return nil, err
	}
	using, err := o.Using(ctx)
	if err != nil {
		return nil, err
	}
	looked := time.Now()
	survey := o.arrange(csiNodes, plugins, using)
	var keys []status.ObjectKey
	for _, object := range objects {
		keys = append(keys, status.ObjectKey(object))
	}
	if err := o.fetchReports(ctx, survey.Nodes, keys); err != nil {
		return nil, err
	}
	if err := o.confirmWaiting(ctx, survey.Nodes, looked); err != nil {
		return nil, err
	}
	return survey, nil
}

// arrange returns the nodes that have to answer.
func (o *Options) arrange(csiNodes []storagev1.CSINode, plugins []corev1.Pod, using []Pod) *Survey {
	survey, nodes := &Survey{}, map[string]*Node{}
	node := func(name string) *Node {
		if nodes[name] == nil {
			nodes[name] = &Node{Name: name}
		}
		return nodes[name]
	}
	for i := range csiNodes {
		if o.isRegistered(&csiNodes[i]) {
			node(csiNodes[i].Name)
		}
	}
	for _, pod := range using {
		if pod.Node == "" || !pod.Accepted {
			survey.NotAccepted = append(survey.NotAccepted, pod)
			continue
		}
		n := node(pod.Node)
		n.Pods = append(n.Pods, pod)
	}
	for i := range plugins {
		pod := &plugins[i]
		if pod.Spec.NodeName == "" {
			continue
		}
		if n := node(pod.Spec.NodeName); n.pod == nil || isPreferred(pod, n.pod) {
			n.Plugin, n.pod = pod.Name, pod
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[name]
		n.isWaiting = o.Settle > 0 && o.isWaitingForPlugin(n, csiNodes, plugins)
		survey.Nodes = append(survey.Nodes, *n)
	}
	return survey
}

// isPreferred reports whether the first of two plugin pods on a node is the one to ask. During a rollout of the plugin, the old and the new
// pod may both be there.
func isPreferred(a, b *corev1.Pod) bool {
	rank := func(pod *corev1.Pod) int {
		switch {
		case pod.Status.Phase != corev1.PodRunning:
			return 0
		case pod.DeletionTimestamp != nil:
			return 1
		case !isReady(pod):
			return 2
		}
		return 3
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time)) > 0
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// fetchReports sets the nodes' reports and problems. It waits until everything that it started has ended.
func (o *Options) fetchReports(ctx context.Context, nodes []Node, objects []status.ObjectKey) error {
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(o.AtOnce)
	for i := range nodes {
		group.Go(func() error {
			if errors.Is(asking.Err(), context.Canceled) {
				return nil
			}
			if err := o.fetchReport(asking, &nodes[i], objects); err != nil {
				return err
			}
			o.attributeToNode(asking, &nodes[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return cancelled(ctx)
}

// fetchReport sets one node's report and problem. The error is a refusal that concerns all nodes.
func (o *Options) fetchReport(ctx context.Context, node *Node, objects []status.ObjectKey) error {
	pod := node.pod
	switch {
	case pod == nil:
		node.problem(NoPlugin, "no pod of the plugin is on this node")
		return nil
	case pod.Status.Phase != corev1.PodRunning:
		node.problem(NotReady, fmt.Sprintf("the plugin's pod is %s%s", cmp.Or(string(pod.Status.Phase), "in no phase"), notRunningText(pod)))
		return nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("no answer within %s", o.Timeout))
	defer cancel()
	report, err := o.Fetch(bounded, pod.Name, objects)
	switch {
	case apierrors.IsForbidden(err):
		return err
	case errors.Is(err, syscall.ECONNREFUSED) && !isReady(pod):
		node.problem(NotReady, fmt.Sprintf("the plugin's pod is not ready: %v%s", err, notRunningText(pod)))
	case errors.Is(err, status.ErrFormat), errors.Is(err, syscall.ECONNREFUSED):
		node.problem(OtherRelease, fmt.Sprintf("the plugin is of a release without such reports, or has another --status-address: %v", err))
	case err != nil && bounded.Err() != nil:
		node.problem(Unreachable, fmt.Sprintf("%v: %v", context.Cause(bounded), err))
	case err != nil:
		node.problem(Unreachable, err.Error())
	case report.Driver != o.Driver:
		node.problem(OtherPlugin, "the pod serves the driver "+report.Driver)
	case report.Node != node.Name:
		node.problem(OtherPlugin, "the pod reports for node "+report.Node)
	default:
		node.Report = report
		o.forgetEnded(bounded, node)
		if !isReady(pod) {
			node.problem(NotReady, because("the plugin's pod is not ready", strings.Join(report.NotReady, "; ")))
		}
	}
	return nil
}

// notRunningText returns what a pod's status says about containers that don't run, or about a pod without a node. It is appended to a text
// and may be "".
func notRunningText(pod *corev1.Pod) (text string) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			text += fmt.Sprintf(": %s: %s", c.Reason, c.Message)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		if waits := c.State.Waiting; waits != nil {
			text += fmt.Sprintf(": container %s waits: %s", c.Name, because(waits.Reason, waits.Message))
		}
		if ended := c.LastTerminationState.Terminated; ended != nil {
			lines := strings.Split(strings.TrimSpace(ended.Message), "\n")
			text += fmt.Sprintf(": container %s ended with status %d: %s", c.Name, ended.ExitCode, because(ended.Reason, lines[len(lines)-1]))
		}
	}
	return text
}

// attributeToNode attributes the problem to the node if the node is not ready.
func (o *Options) attributeToNode(ctx context.Context, node *Node) {
	if p := node.Problem; p == nil || ctx.Err() != nil || p.Reason == OtherRelease || p.Reason == OtherPlugin {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	switch ready, err := o.NodeReady(ctx, node.Name); {
	case err != nil:
		node.problem(node.Problem.Reason, fmt.Sprintf("%s; whether the node is ready isn't known: %v", node.Problem.Message, err))
	case !ready:
		node.problem(NodeNotReady, "the node is not ready: "+node.Problem.Message)
	}
}

// Missing returns the pods whose volumes the plugin does not report, each with only those volumes. Without a report it returns none.
func (n *Node) Missing() (pods []Pod) {
	if n.Report == nil {
		return nil
	}
	type volume struct{ uid, name string }
	reported := map[volume]bool{}
	for i := range n.Report.Volumes {
		v := &n.Report.Volumes[i]
		reported[volume{v.Pod.UID, v.Name}] = true
	}
	for _, other := range n.Report.Others {
		for _, name := range other.Volumes {
			reported[volume{other.PodUID, name}] = true
		}
	}
	for _, pod := range n.Pods {
		pod.Volumes = slices.DeleteFunc(slices.Clone(pod.Volumes), func(name string) bool { return reported[volume{string(pod.UID), name}] })
		if len(pod.Volumes) > 0 {
			pods = append(pods, pod)
		}
	}
	return pods
}

// forgetEnded removes the pods that have ended since they were listed. Their volumes are unpublished, so the plugin does not report them.
func (o *Options) forgetEnded(ctx context.Context, node *Node) {
	for _, pod := range node.Missing() {
		if !pod.Started {
			continue
		}
		// If the request fails, the pod counts as missing.
		if now, err := o.Pod(ctx, pod.Namespace, pod.Name); err == nil && (now == nil || now.UID != pod.UID) {
			node.Pods = slices.DeleteFunc(node.Pods, func(p Pod) bool { return p.UID == pod.UID })
		}
	}
}

func (n *Node) problem(reason Reason, message string) {
	n.Problem = &Problem{reason, message}
}
