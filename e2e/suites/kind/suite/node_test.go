package suite

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// controlPlaneTaint keeps the pods of other tests away from a node.
	controlPlaneTaint = "node-role.kubernetes.io/control-plane"
	// withoutPlugin is the label of nodes that the plugin, as the runner installs it,
	// stays away from.
	withoutPlugin = "e2e.refvol.dev/without-plugin"
	// cleanupTimeout bounds what puts the cluster back as it was.
	cleanupTimeout = 2 * time.Minute
)

// ownNode is held by the one test that has the control plane's node to itself.
var ownNode sync.Mutex

// takeNode returns the name of a node that no other test has pods on until this one
// has ended, where the plugin or the kubelet can go down beside other tests: that of the
// control plane, whose own pods need neither. Pods must be put there by their spec.
func takeNode(t *testing.T) string {
	t.Helper()
	needsNodes(t, "has a node of the control plane for itself")
	ownNode.Lock()
	t.Cleanup(ownNode.Unlock)
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

// docker calls the container engine that DOCKER_HOST names: the nodes are its
// containers.
func docker(ctx context.Context, args ...string) error {
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// mustDocker calls docker for a test.
func mustDocker(t *testing.T, args ...string) {
	t.Helper()
	needsNodes(t, "restarts or changes a node")
	if err := docker(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
}

// keepPluginAway takes the plugin down on one node, and returns when it is gone, and the
// function that lets it come back. At the end of the test it is back in any case.
func (c *cluster) keepPluginAway(t *testing.T, node string) (letBack func()) {
	t.Helper()
	plugin := &pod{&namespace{cluster: c, t: t}, c.mustPlugin(t, node)}
	label := func(ctx context.Context, value string) error {
		patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, withoutPlugin, value)
		_, err := c.client.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		if err := label(ctx, "null"); err != nil {
			t.Error(err)
		}
		c.awaitPlugin(ctx, t, node)
	})
	c.searchBefore(t, plugin.Pod)
	if err := label(t.Context(), `"yes"`); err != nil {
		t.Fatal(err)
	}
	plugin.awaitGone(t)
	return func() {
		t.Helper()
		if err := label(t.Context(), "null"); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitPlugin waits until the plugin of the node is ready, and returns when it saw so.
func (c *cluster) awaitPlugin(ctx context.Context, t *testing.T, node string) time.Time {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	err := poll(ctx, func(ctx context.Context) error {
		plugin, err := c.plugin(ctx, node)
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
	return time.Now()
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
