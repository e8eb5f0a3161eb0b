package suite

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods that are created while the plugin is down start when it is back, and pods that
// are deleted meanwhile finish terminating then, and leave nothing.
func TestPodsWhilePluginIsDown(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "old"})
	settings := refvol("settings", attributes{"configMap": "settings"})
	inspector := n.startOnNode("inspector", node)
	deleted := n.start(onNode(newPod("deleted", settings), node))
	left := leftovers{inspector: inspector, paths: pluginPaths(t, n.mustPlugin(t, node)), of: deleted}

	letBack := n.keepPluginAway(t, node)
	created := n.create(onNode(newPod("created", settings), node))
	if err := n.client.CoreV1().Pods(n.name).Delete(t.Context(), deleted.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Log(created.awaitEvent("driver name " + driver + " not found"))
	deleted.awaitEnded()
	// Its containers have ended, and without the plugin nobody can unmount its volume.
	left.there(t)
	n.updateConfigMap("settings", object{"key": "new"})

	letBack()
	created.awaitReady()
	if err := created.hasText(t.Context(), "probe", mountDir+"settings/key", "new"); err != nil {
		t.Error(err)
	}
	deleted.awaitGone(t)
	left.awaitNone(t)
}

// A pod that is removed by force and made again at once has another UID. While the
// volume of the first is still to be unpublished, the second gets its own, and both end
// right.
func TestSamePodNameOtherUID(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.createConfigMap("first", object{"key": "of the first"})
	n.createConfigMap("second", object{"key": "of the second", "more": "text"})
	inspector := n.startOnNode("inspector", node)
	paths := pluginPaths(t, n.mustPlugin(t, node))
	first := n.start(onNode(newPod("twin", refvol("settings", attributes{"configMap": "first"})), node))

	// Without the plugin the unpublish can't end.
	letBack := n.keepPluginAway(t, node)
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := n.client.CoreV1().Pods(n.name).Delete(t.Context(), first.Name, now); err != nil {
		t.Fatal(err)
	}
	second := n.create(onNode(newPod("twin", refvol("settings", attributes{"configMap": "second"})), node))
	if first.UID == second.UID {
		t.Fatal("it is the same pod")
	}
	old := leftovers{inspector: inspector, paths: paths, of: first}
	old.there(t)

	letBack()
	second.awaitReady()
	if err := second.hasText(t.Context(), "probe", mountDir+"settings/key", "of the second"); err != nil {
		t.Error(err)
	}
	old.awaitNone(t)
	n.updateConfigMap("first", object{"key": "nobody's"})
	n.updateConfigMap("second", object{"key": "changed", "more": "text"})
	second.probe("await", mountDir+"settings/key", "changed", podTimeout.String())
	if err := second.hasText(t.Context(), "probe", mountDir+"settings/more", "text"); err != nil {
		t.Error(err)
	}
	own := leftovers{inspector: inspector, paths: paths, of: second}
	own.there(t)
	second.delete()
	own.awaitNone(t)
}

// awaitEnded waits until the containers of a pod that was deleted have ended.
func (p *pod) awaitEnded() {
	p.t.Helper()
	eventually(p.t, podTimeout, "end of the containers of pod "+p.Name, func(ctx context.Context) error {
		now, err := p.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.DeletionTimestamp == nil {
			return errors.New("it was not deleted")
		}
		for _, c := range now.Status.ContainerStatuses {
			if c.State.Terminated == nil {
				return fmt.Errorf("container %s: %+v", c.Name, c.State)
			}
		}
		return nil
	})
}
