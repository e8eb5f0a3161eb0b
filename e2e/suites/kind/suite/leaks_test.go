package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/judge"
	"github.com/refvol/refvol/internal/leak"
)

// canary makes a value of a Secret from a text. Wherever it is found but in a volume, it
// fails the test or the run.
func canary(text string) string { return leak.Value + "-" + text }

// TestMain searches, once all tests are over, what is left of what the plugins showed. Each
// test's own namespace is searched at the test's end, when it goes.
func TestMain(m *testing.M) {
	status := m.Run()
	if os.Getenv("KUBECONFIG") != "" {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := searchCluster(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL: the search for values and tokens:", err)
			status = max(status, 1)
		}
	}
	os.Exit(status)
}

// searchCluster searches the plugins' logs, all events, and what is said of pods and nodes. What the plugins serve is searched by the suite
// integration.
func searchCluster(ctx context.Context) error {
	c, err := newCluster()
	if err != nil {
		return err
	}
	plugins, err := c.plugins(ctx)
	if err == nil && len(plugins.Items) == 0 {
		err = errors.New("there is no plugin")
	}
	if err != nil {
		return err
	}
	errs := []error{c.searchObjects(ctx, pluginNamespace, metav1.NamespaceAll), c.searchNodes(ctx)}
	for i := range plugins.Items {
		errs = append(errs, c.searchLogs(ctx, &plugins.Items[i], &corev1.PodLogOptions{}))
	}
	return errors.Join(errs...)
}

// plugins returns the pods of every plugin that is installed.
func (c *cluster) plugins(ctx context.Context) (*corev1.PodList, error) {
	return c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: pluginLabels})
}

// searchLogs searches the logs of all containers of a pod, also those of the run before
// this one. Nor may they say that the plugin has derived another
// request than the kubelet sent, or that it has recovered from a panic.
func (c *cluster) searchLogs(ctx context.Context, p *corev1.Pod, opts *corev1.PodLogOptions) error {
	var errs []error
	if opts.SinceTime == nil && len(p.Status.ContainerStatuses) == 0 {
		errs = append(errs, fmt.Errorf("%s has no containers whose logs can be searched", p.Name))
	}
	for _, container := range p.Status.ContainerStatuses {
		for _, previous := range []bool{false, true} {
			if previous && !c.hasPrevious(ctx, p, &container) {
				continue
			}
			opts.Container, opts.Previous = container.Name, previous
			text, err := c.log(ctx, p, opts)
			errs = append(errs, err, leak.Check("the log of "+p.Name, text))
			if err == nil && opts.SinceTime == nil && !previous { // an earlier run may have ended before its first line
				errs = append(errs, judge.Control("the log of "+p.Name, text))
			}
			for _, bad := range []string{logDerived, "panicked"} {
				if strings.Contains(text, bad) {
					errs = append(errs, fmt.Errorf("the log of %s says: %s", p.Name, bad))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// hasPrevious says whether a container has a run before this one whose log can be read. CRI-O forgets at a reboot what ran before.
func (c *cluster) hasPrevious(ctx context.Context, p *corev1.Pod, container *corev1.ContainerStatus) bool {
	if last := container.LastTerminationState.Terminated; container.RestartCount == 0 || last != nil && last.ContainerID != "" {
		return container.RestartCount > 0
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
	return err != nil || !isCRIO(node)
}

// isCRIO says whether a node's container runtime is CRI-O.
func isCRIO(node *corev1.Node) bool {
	return strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "cri-o:")
}

// searchObjects searches the events and the pods' status of a namespace, or of all. It must find an event that it creates.
func (c *cluster) searchObjects(ctx context.Context, namespace, in string) error {
	control := "control of the search " + rand.Text()
	if _, err := c.client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: "control-"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: "control"},
		Type:           corev1.EventTypeNormal, Reason: "Control", Message: control,
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	events, err := c.client.CoreV1().Events(in).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods, err := c.client.CoreV1().Pods(in).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	var messages strings.Builder
	for i := range events.Items {
		e := &events.Items[i]
		fmt.Fprintln(&messages, e.Message)
		errs = append(errs, leak.CheckObject("event "+e.Namespace+"/"+e.Name, e))
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		errs = append(errs, leak.CheckObject("status of pod "+p.Namespace+"/"+p.Name, p.Status))
	}
	return errors.Join(append(errs, judge.Control("the events of "+namespace, messages.String(), control))...)
}

// searchNodes searches what the plugin and the kubelet write of a node.
func (c *cluster) searchNodes(ctx context.Context) error {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	drivers, err := c.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err == nil && len(nodes.Items)*len(drivers.Items) == 0 {
		err = fmt.Errorf("%d nodes and %d CSINodes", len(nodes.Items), len(drivers.Items))
	}
	if err != nil {
		return err
	}
	return errors.Join(leak.CheckObject("the nodes", nodes), leak.CheckObject("the CSINodes", drivers))
}

// searchNamespace searches what there is of a test when it ends, the plugins' logs as far as
// they have grown since begin.
func (n *namespace) searchNamespace(ctx context.Context, begin time.Time) {
	n.t.Helper()
	err := n.searchObjects(ctx, n.name, n.name)
	gone := apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) // the test may have removed it
	if err != nil && !gone {
		n.t.Errorf("values or tokens have leaked, or were not searched for: %v", err)
	}
	plugins, err := n.plugins(ctx)
	if err != nil {
		n.t.Error(err)
		return
	}
	for i := range plugins.Items {
		p := &plugins.Items[i]
		// One that comes or goes beside this test may have no log.
		if !ready(p) || p.DeletionTimestamp != nil {
			continue
		}
		if err := n.searchLogs(ctx, p, &corev1.PodLogOptions{SinceTime: &metav1.Time{Time: begin}}); isLeak(err) {
			n.t.Errorf("values or tokens have leaked: %v", err)
		}
	}
}

// isLeak tells a leak from a log that can't be read now, which the end of the run tries
// again.
func isLeak(err error) bool { return err != nil && strings.Contains(err.Error(), " leaks a ") }

// searchBefore searches a plugin's log before its pod goes, and the log with it. Beside it another test may restart the kubelet, without
// which there is no log.
func (c *cluster) searchBefore(t *testing.T, plugin *corev1.Pod) {
	t.Helper()
	eventually(t, podTimeout, "no leak in the log of "+plugin.Name, func(ctx context.Context) error {
		return c.searchLogs(ctx, plugin, &corev1.PodLogOptions{})
	})
}
