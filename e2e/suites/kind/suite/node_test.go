package suite

import (
	"context"
	"errors"
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
	"k8s.io/apimachinery/pkg/types"
)

const (
	// controlPlaneTaint keeps the pods of other tests away from a node.
	controlPlaneTaint = "node-role.kubernetes.io/control-plane"
	// cleanupTimeout bounds what puts the cluster back as it was.
	cleanupTimeout = 2 * podTimeout
)

// The tests that can't run beside each other wait for each other. Who takes both, takes them in this order.
var (
	// theNode is that of takeNode and of takeQuietNode.
	theNode sync.Mutex
	// daemonSets is held for reading by the tests that call useAllNodes, and for writing by that of takeQuietNode.
	daemonSets sync.RWMutex
)

// useAllNodes is called by a test that brings a DaemonSet, whose pods and mounts come and go on
// every node.
func useAllNodes(t *testing.T) {
	t.Helper()
	daemonSets.RLock()
	t.Cleanup(daemonSets.RUnlock)
}

// takeNode returns the name of a node where the plugin or the kubelet can go down beside other tests,
// as no other test has pods there until this one has ended, but for DaemonSets': that of the control
// plane, whose own pods need neither. Pods must be put there by their spec.
func takeNode(t *testing.T) string {
	t.Helper()
	theNode.Lock()
	t.Cleanup(theNode.Unlock)
	return takenNode(t)
}

// takeQuietNode is takeNode for a test that compares all that the node has: no test brings a DaemonSet
// until it has ended.
func takeQuietNode(t *testing.T) string {
	t.Helper()
	node := takeNode(t)
	daemonSets.Lock()
	t.Cleanup(daemonSets.Unlock)
	connect(t).awaitAllReady(t, node)
	return node
}

// awaitAllReady waits until each pod of a node is ready, and none is on its way out.
func (c *cluster) awaitAllReady(t *testing.T, node string) {
	t.Helper()
	eventually(t, podTimeout, "all pods ready on "+node, func(ctx context.Context) error {
		pods, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; !ready(p) || p.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s/%s is not, or goes", p.Namespace, p.Name)
			}
		}
		return nil
	})
}

// takenNode returns the node's name when the plugin is ready there.
func takenNode(t *testing.T) string {
	t.Helper()
	c := connect(t)
	nodes, err := c.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: controlPlaneTaint})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes.Items {
		if len(node.Spec.Taints) > 0 {
			c.awaitPlugin(t.Context(), t, node.Name)
			return node.Name
		}
	}
	t.Fatal("no node of the control plane keeps other pods away by a taint")
	return ""
}

// onNode has a pod run on the node, whatever taints it has.
func onNode(spec *corev1.Pod, node string) *corev1.Pod {
	spec.Spec.NodeName = node
	spec.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	return spec
}

// command runs a program and returns what it printed, also with an error.
func command(ctx context.Context, program string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %.4096s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// docker calls the container engine that DOCKER_HOST names: the nodes are its
// containers.
func docker(ctx context.Context, args ...string) error {
	_, err := command(ctx, "docker", args...)
	return err
}

// kubectl runs kubectl as the cluster's admin.
func kubectl(ctx context.Context, args ...string) error {
	_, err := command(ctx, os.Getenv("REFVOL_KUBECTL"), args...)
	return err
}

// mustDocker calls docker for a test.
func mustDocker(t *testing.T, args ...string) {
	t.Helper()
	if err := docker(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// awaitPlugin waits until the plugin of the node is ready.
func (c *cluster) awaitPlugin(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		plugin, err := c.findPlugin(ctx, pluginNamespace, node)
		if err != nil {
			return err
		}
		if plugin == nil || plugin.DeletionTimestamp != nil || !ready(plugin) {
			return fmt.Errorf("it is not: %v", plugin)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("plugin on %s ready: %v", node, err)
	}
}

// run is what tells one run of a pod's containers from another.
type run struct {
	uid        types.UID
	containers string
}

// runOf returns the run of a pod that is ready.
func runOf(p *corev1.Pod) (run, error) {
	if !ready(p) {
		return run{}, fmt.Errorf("pod %s is not ready", p.Name)
	}
	var ids []string
	for _, c := range p.Status.ContainerStatuses {
		ids = append(ids, fmt.Sprintf("%s, %d restarts", c.ContainerID, c.RestartCount))
	}
	return run{p.UID, strings.Join(ids, "; ")}, nil
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
	if len(lines) == 0 {
		return nil, errors.New("the node has no mounts")
	}
	slices.Sort(lines)
	return lines, nil
}

// notIn returns the elements of one that other has not.
func notIn(other, one []string) []string {
	return slices.DeleteFunc(slices.Clone(one), func(line string) bool { return slices.Contains(other, line) })
}

// having returns the lines that contain text.
func having(text string, lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, text) })
}
