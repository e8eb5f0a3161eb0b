package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeRoot is the node's file system, seen from a pod with the node's process ids.
const nodeRoot = "/proc/1/root"

// startOnNode starts a pod that sees a node as the node's root does: its processes,
// and through the first of them its files and mounts.
func (n *namespace) startOnNode(name, node string) *pod {
	n.t.Helper()
	spec := newPod(name)
	spec.Spec.NodeName = node
	spec.Spec.HostPID = true
	spec.Spec.SecurityContext = nil
	spec.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	spec.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	return n.start(spec)
}

// mounts returns the mounts whose line contains text, of every process of the node.
func (p *pod) mounts(ctx context.Context, text string) ([]mountLine, error) {
	answer, err := p.ask(ctx, "probe", "mounts", text)
	if err != nil {
		return nil, err
	}
	var found []mountLine
	return found, json.Unmarshal([]byte(answer), &found)
}

// leftovers finds what the volumes of one pod have left on its node.
type leftovers struct {
	inspector *pod
	paths     nodePaths
	of        *pod
}

// there checks that each search finds something, as it must while the pod has its
// volumes: so finding nothing afterwards means something.
func (l leftovers) there(t *testing.T) {
	t.Helper()
	for what, find := range l.searches() {
		if err := find(t.Context()); err == nil {
			t.Errorf("pod %s (%s): no %s while it has its volumes", l.of.Name, l.of.UID, what)
		}
	}
}

// awaitNone waits until nothing is left.
func (l leftovers) awaitNone(t *testing.T) {
	t.Helper()
	for what, find := range l.searches() {
		eventually(t, podTimeout, fmt.Sprintf("pod %s (%s) left no %s", l.of.Name, l.of.UID, what), find)
	}
}

// searches returns functions that return an error which tells what they found, or
// nil if they found nothing.
func (l leftovers) searches() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"mount":     l.mounts,
		"directory": l.directory,
	}
}

// mounts looks in every mount namespace of the node.
func (l leftovers) mounts(ctx context.Context) error {
	for _, text := range append(l.of.volumeIDs(), string(l.of.UID)) {
		found, err := l.inspector.mounts(ctx, text)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return fmt.Errorf("%d mounts, the first of %q: %s", len(found), found[0].Process, found[0].Line)
		}
	}
	return nil
}

// directory looks for the pod's directory, which the kubelet can remove only when
// every volume is gone from it.
func (l leftovers) directory(ctx context.Context) error {
	dir := path.Join(nodeRoot, l.paths.pods, string(l.of.UID))
	answer, err := l.inspector.ask(ctx, "probe", "tree", dir)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %s", dir, answer)
}

// onlyOneMount checks that the node itself has the volume mounted once.
func onlyOneMount(t *testing.T, inspector *pod, id string) {
	t.Helper()
	found, err := inspector.mounts(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, m := range found {
		if m.PID == 1 {
			count++
		}
	}
	if count != 1 {
		t.Errorf("the node has %d mounts of %s: %+v", count, id, found)
	}
}

// deletePlugin deletes the plugin's pod and waits until it is gone.
func deletePlugin(t *testing.T, n *namespace, plugin *corev1.Pod) {
	t.Helper()
	n.searchBefore(t, plugin)
	err := n.client.CoreV1().Pods(plugin.Namespace).Delete(t.Context(), plugin.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	(&pod{n, plugin}).awaitGone(t)
}
