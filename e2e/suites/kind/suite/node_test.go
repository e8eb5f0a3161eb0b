package suite

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/internal/must"
)

const (
	// controlPlaneTaint keeps the pods of other tests away from a node.
	controlPlaneTaint = "node-role.kubernetes.io/control-plane"
	// cleanupTimeout bounds what puts the cluster back as it was.
	cleanupTimeout = 2 * podTimeout
)

// theNode is that of takeNode and of shareNode.
var theNode sync.RWMutex

// takeNode returns the name of a node where the plugin and the kubelet can go down beside other tests,
// as no other test has pods there until this one has ended, but for DaemonSets': that of the control
// plane, whose own pods need neither. Pods must be put there by their spec.
func takeNode(t *testing.T) string {
	t.Helper()
	theNode.Lock()
	t.Cleanup(theNode.Unlock)
	return takenNode(t)
}

// shareNode is takeNode for tests that run there beside each other: the kubelet and the plugin that all tests use stay up.
func shareNode(t *testing.T) string {
	t.Helper()
	theNode.RLock()
	t.Cleanup(theNode.RUnlock)
	return takenNode(t)
}

// takenNode returns the node's name when the plugin is ready there.
func takenNode(t *testing.T) string {
	t.Helper()
	c := connect(t)
	for _, node := range c.nodes(t) {
		if _, ok := node.Labels[controlPlaneTaint]; ok && len(node.Spec.Taints) > 0 {
			c.awaitPlugin(t, pluginNamespace, node.Name)
			return node.Name
		}
	}
	t.Fatal("no node of the control plane keeps other pods away by a taint")
	return ""
}

// nodes returns all nodes.
func (c *cluster) nodes(t *testing.T) []corev1.Node {
	t.Helper()
	return must.Get(c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}))(t).Items
}

// workers returns the names of all nodes but the control plane's.
func (c *cluster) workers(t *testing.T) []string {
	t.Helper()
	var workers []string
	for _, node := range c.nodes(t) {
		if _, ok := node.Labels[controlPlaneTaint]; !ok {
			workers = append(workers, node.Name)
		}
	}
	return workers
}

// onNode has a pod run on the node, whatever taints it has.
func onNode(spec *corev1.Pod, node string) *corev1.Pod {
	spec.Spec.NodeName = node
	spec.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return spec
}

// command runs a program.
func command(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %.4096s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return err
}

// docker calls the container engine that DOCKER_HOST names: the nodes are its
// containers.
func docker(ctx context.Context, args ...string) error { return command(ctx, "docker", args...) }

// kubectl runs kubectl as the cluster's admin.
func kubectl(ctx context.Context, args ...string) error {
	return command(ctx, os.Getenv("REFVOL_KUBECTL"), args...)
}

// kubectl is kubectl for a test, in its namespace.
func (n *namespace) kubectl(args ...string) {
	n.t.Helper()
	must.Do(n.t, kubectl(n.t.Context(), append(args, "--namespace="+n.name)...))
}

// mustDocker calls docker for a test.
func mustDocker(t *testing.T, args ...string) {
	t.Helper()
	must.Do(t, docker(t.Context(), args...))
}

// awaitPlugin waits until the plugin of the node that is installed in a namespace is ready, and returns it.
func (c *cluster) awaitPlugin(t *testing.T, namespace, node string) (plugin *corev1.Pod) {
	t.Helper()
	eventually(t, podTimeout, "plugin on "+node+" ready", func(ctx context.Context) (err error) {
		plugin, err = c.findPlugin(ctx, namespace, node)
		if err == nil && (plugin == nil || plugin.DeletionTimestamp != nil || !ready(plugin)) {
			err = fmt.Errorf("it is not: %v", plugin)
		}
		return err
	})
	return plugin
}

// runOf returns what tells one run of a pod's containers from another. The pod must be ready.
func runOf(p *corev1.Pod) (string, error) {
	if !ready(p) {
		return "", fmt.Errorf("pod %s is not ready", p.Name)
	}
	run := string(p.UID)
	for _, c := range p.Status.ContainerStatuses {
		run += fmt.Sprintf("; %s, %d restarts", c.ContainerID, c.RestartCount)
	}
	return run, nil
}

// mountTable returns the mounts of the node itself, as its kernel tells them.
func (p *pod) mountTable(ctx context.Context) ([]string, error) {
	found, err := p.mounts(ctx, "")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, m := range found {
		if m.PID == 1 {
			lines = append(lines, m.Line)
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// having returns the lines that contain text.
func having(text string, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, text) })
}

// undo puts a node back as it was, also when the test's own time is over.
func (n *namespace) undo(how func(context.Context) error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := how(ctx); err != nil {
		n.t.Error(err)
	}
}
