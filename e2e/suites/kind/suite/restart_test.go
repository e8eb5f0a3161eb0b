package suite

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restartLimit is how soon after a restart the plugin has brought a change that was
// made before it, on a busy machine. How soon it is on an idle one is measured by the
// benchmark of restarts.
const restartLimit = time.Minute

// The plugin goes down and comes up again under a running pod. The pod's files stay
// readable all the time; a change right after arrives, and so does the next one, by
// a watch again.
func TestPluginRestart(t *testing.T) {
	needsNodes(t, "looks at a node's mounts and processes")
	for _, c := range []struct {
		name     string
		takeDown func(t *testing.T, n *namespace, inspector *pod, plugin *corev1.Pod)
	}{
		{"pod deleted", deletePlugin},
		{"process killed", killPlugin},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNamespace(t)
			n.createSecret("login", object{"user": canary("one")})
			node := n.worker(t)
			inspector := n.startOnNode("inspector", node)
			spec := newPod("reader", refvol("login", attributes{"secret": "login"}))
			spec.Spec.NodeName = node
			p := n.start(spec)
			file := mountDir + "login/user"

			// This one reads from before the plugin goes until after it is back.
			w := p.await(file, canary("two"), 2*podTimeout)
			c.takeDown(t, n, inspector, n.mustPlugin(t, node))
			changed := time.Now()
			n.updateSecret("login", object{"user": canary("two")})
			back := n.awaitPlugin(t.Context(), t, node)
			got := w.arrive()
			t.Logf("%d reads meanwhile, %d failed; the change made right after the restart: %s",
				got.Reads, got.Failed, milliseconds(got.at.Sub(changed)))
			if got.Failed > 0 {
				t.Errorf("a read failed: %s", got.Error)
			}
			if late := got.at.Sub(back); late > restartLimit {
				t.Errorf("the change came %s after the plugin was ready", late)
			}

			w = p.await(file, canary("three"), podTimeout)
			before := time.Now()
			n.updateSecret("login", object{"user": canary("three")})
			took := w.arrive().at.Sub(before)
			t.Logf("the next change: %s", milliseconds(took))
			if took >= busyLimit {
				t.Errorf("the next change took %s", milliseconds(took))
			}
			onlyOneMount(t, inspector, p.volumeID("login"))
		})
	}
}

// A change that is made while there is no plugin at all arrives when there is one
// again. Until then the files are as they were.
func TestChangeWhilePluginIsDown(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": canary("old")})
	p := n.start(onNode(newPod("reader", refvol("settings", attributes{"configMap": "settings"})), node))
	file := mountDir + "settings/key"
	letBack := n.keepPluginAway(t, node)
	w := p.await(file, canary("new"), 2*podTimeout)
	n.updateConfigMap("settings", object{"key": canary("new")})
	if err := p.hasText(t.Context(), "probe", file, canary("old")); err != nil {
		t.Errorf("without a plugin: %v", err)
	}
	letBack()
	back := n.awaitPlugin(t.Context(), t, node)
	got := w.arrive()
	if got.Failed > 0 {
		t.Errorf("%d of %d reads failed: %s", got.Failed, got.Reads, got.Error)
	}
	if late := got.at.Sub(back); late > restartLimit {
		t.Errorf("the change came %s after the plugin was ready", late)
	}
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
func deletePlugin(t *testing.T, n *namespace, _ *pod, plugin *corev1.Pod) {
	t.Helper()
	n.searchBefore(t, plugin)
	err := n.client.CoreV1().Pods(plugin.Namespace).Delete(t.Context(), plugin.Name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	(&pod{n, plugin}).awaitGone(t)
}

// killPlugin ends the plugin's process as a crash would, and waits until the cluster
// knows.
func killPlugin(t *testing.T, n *namespace, inspector *pod, plugin *corev1.Pod) {
	t.Helper()
	restarts := plugin.Status.ContainerStatuses[0].RestartCount
	inspector.probe("kill", pluginProgram, "--driver-name="+driver)
	eventually(t, podTimeout, "restart of the plugin's container", func(ctx context.Context) error {
		now, err := n.client.CoreV1().Pods(plugin.Namespace).Get(ctx, plugin.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := now.Status.ContainerStatuses[0]; status.RestartCount == restarts && status.Ready {
			return errors.New("it still runs")
		}
		return nil
	})
}
