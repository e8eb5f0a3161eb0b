package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/probe/answers"
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
func (p *pod) mounts(ctx context.Context, text string) ([]answers.Mount, error) {
	answer, err := p.ask(ctx, "probe", "mounts", text)
	if err != nil {
		return nil, err
	}
	var found []answers.Mount
	return found, json.Unmarshal([]byte(answer), &found)
}

// leftovers finds what the volumes of one pod have left on its node.
type leftovers struct{ inspector, of *pod }

// there checks that each search finds something, as it must while the pod has its
// volumes: so finding nothing afterwards means something.
func (l leftovers) there(t *testing.T) {
	t.Helper()
	if l.mounts(t.Context()) == nil || l.directory(t.Context()) == nil {
		t.Errorf("pod %s (%s): no mount or no directory while it has its volumes", l.of.Name, l.of.UID)
	}
}

// awaitNone waits until nothing is left.
func (l leftovers) awaitNone(t *testing.T) {
	t.Helper()
	eventually(t, podTimeout, fmt.Sprintf("pod %s (%s) left no mount", l.of.Name, l.of.UID), l.mounts)
	eventually(t, podTimeout, fmt.Sprintf("pod %s (%s) left no directory", l.of.Name, l.of.UID), l.directory)
}

// mounts returns an error if any is in a mount namespace of the node.
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

// directory returns an error if the pod's directory is there, which the kubelet can remove only when
// every volume is gone from it.
func (l leftovers) directory(ctx context.Context) error {
	answer, err := l.inspector.ask(ctx, "probe", "tree", nodeRoot+podsDir+string(l.of.UID))
	if isAbsent(err) {
		return nil
	}
	return fmt.Errorf("it is there: %s, %w", answer, err)
}

// onlyOneMount checks that the node itself has the volume mounted once.
func onlyOneMount(t *testing.T, inspector *pod, id string) {
	t.Helper()
	table, err := inspector.mountTable(t.Context())
	if found := having(id, table); err != nil || len(found) != 1 {
		t.Errorf("the node has the mounts %q of %s, error %v", found, id, err)
	}
}
