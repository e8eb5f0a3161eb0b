package suite

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/must"
)

// A plugin that restarts derives from the pods' specs what the kubelet asked of it. A kubelet
// that restarts publishes the volumes of all pods again, and no request differs from the derived
// one. Again and again: the pods' mounts stay the very ones that they were, no container
// restarts, and volumes stay live. A pod whose object was deleted meanwhile goes on, and terminates.
//
// The kubelet renews tokens then, and the sidecar of docs/apply.md signals the program of a pod that has one. It writes certificates of a
// pod in the same way, and keeps both in its memory only.
func TestKubeletRestarts(t *testing.T) {
	t.Parallel()
	node := takeNode(t)
	n := newNamespace(t)
	n.setConfigMap("settings", object{"key": "old", "NAME": "value"})
	n.setConfigMap("doomed", object{"key": canary("last")})
	n.setSecret("login", object{"user": canary("old")})
	n.kubectl("create", "serviceaccount", "web")
	token := newNamespace(t).start(renewed(t, node))
	if ended := token.ended(t.Context()); ended != 0 {
		t.Fatalf("before any renewal the program has ended with %d", ended)
	}
	inspector := n.startOnNode("inspector", node)
	var pods []*pod
	var ids []string
	for _, spec := range derivedPods() {
		pods = append(pods, n.start(onNode(spec, node)))
	}
	for _, p := range pods {
		ids = append(ids, p.volumeIDs()...)
	}
	plugin := n.restartDerives(t, node, ids)

	orphan := n.start(onNode(newPod("orphan", refvol("doomed", attributes{"configMap": "doomed"})), node))
	n.drop(kindConfigMap, "doomed")
	all := append(orphan.volumeIDs(), ids...)
	mounts := func() (own []string) {
		t.Helper()
		table := must.Get(inspector.mountTable(t.Context()))(t)
		for _, p := range append([]*pod{orphan}, pods...) {
			own = append(own, having(string(p.UID), table)...)
		}
		return own
	}
	runs, before := n.runs(t, node), mounts()
	if len(before) < len(all) {
		t.Fatalf("the node has the mounts %q of %d volumes", before, len(all))
	}
	for i := range harness.Scaled(2, 100) {
		n.restartKubelet(node, plugin, all)
		if after := mounts(); !slices.Equal(before, after) {
			t.Fatalf("mounts after restart %d: %q, before: %q", i+1, after, before)
		}
	}
	if got := n.runs(t, node); !slices.Equal(got, runs) {
		t.Errorf("pods after the restarts: %v, before: %v", got, runs)
	}
	n.wantDerived(t, plugin, ids)
	eventually(t, restartTimeout, "the program with the token is signalled", func(ctx context.Context) error {
		if ended := token.ended(ctx); ended != hangup {
			return fmt.Errorf("it has ended with %d", ended)
		}
		return nil
	})

	n.setConfigMap("settings", object{"key": "new", "NAME": "value"})
	n.setSecret("login", object{"user": canary("new")})
	for _, p := range pods {
		p.awaitText(mountDir+"short/key", "new", podTimeout)
	}
	plain := pods[0]
	plain.awaitText(mountDir+"in-place/key", "new", podTimeout)
	plain.awaitText(mountDir+"login/user", canary("new"), podTimeout)
	plain.wantText(mountDir+"pinned/user", canary("old"))
	orphan.wantText(mountDir+"doomed/key", canary("last"))
	for _, p := range []*pod{orphan, plain} {
		left := leftovers{inspector: inspector, of: p}
		left.there(t)
		p.delete()
		left.awaitNone(t)
	}
}

// restartKubelet restarts the kubelet of a node, and waits until it has published the volumes again.
func (n *namespace) restartKubelet(node string, plugin *corev1.Pod, ids []string) {
	n.t.Helper()
	since := time.Now()
	known := must.Get(n.publishes(n.t.Context(), plugin, since, ids))(n.t)
	mustDocker(n.t, "exec", node, "systemctl", "restart", "kubelet")
	eventually(n.t, podTimeout, "publish by the kubelet that was restarted", func(ctx context.Context) error {
		now, err := n.publishes(ctx, plugin, since, ids)
		if err != nil {
			return err
		}
		for i, id := range ids {
			if now[i] <= known[i] {
				return fmt.Errorf("volume %s was not published again", id)
			}
		}
		return nil
	})
}

// publishes counts for each volume the publishes that the plugin has answered OK since
// then; of the first second there may be some from before.
func (n *namespace) publishes(ctx context.Context, plugin *corev1.Pod, since time.Time, ids []string) ([]int, error) {
	log, err := n.pluginLog(ctx, plugin, since)
	counts := make([]int, len(ids))
	for i, id := range ids {
		counts[i] = len(linesWith(log, `"CSI call done"`, `"method":"NodePublishVolume"`, id))
	}
	return counts, err
}

// runs returns the runs of this test's pods and of the plugin's on the node, in order.
func (n *namespace) runs(t *testing.T, node string) (runs []string) {
	t.Helper()
	eventually(t, podTimeout, "all pods on "+node+" ready", func(ctx context.Context) error {
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		runs = nil
		for _, p := range append(pods.Items, *n.awaitPlugin(t, pluginNamespace, node)) {
			one, err := runOf(&p)
			if err != nil {
				return err
			}
			runs = append(runs, one)
		}
		return nil
	})
	return runs
}

// logDerived is what the plugin logs when the kubelet's request is another one than that which it has derived.
const logDerived = "The kubelet's request is not the one that was derived from the pod's spec"

// restartDerives has the node's plugin restart, and returns it when it has taken all volumes over.
func (n *namespace) restartDerives(t *testing.T, node string, ids []string) *corev1.Pod {
	t.Helper()
	before := n.awaitPlugin(t, pluginNamespace, node)
	n.searchBefore(before)
	(&pod{n, before}).delete()
	plugin := n.awaitPlugin(t, pluginNamespace, node)
	eventually(t, podTimeout, "all volumes taken over", func(ctx context.Context) error {
		log, err := n.pluginLog(ctx, plugin, plugin.CreationTimestamp.Add(-time.Second))
		for _, id := range ids {
			if err == nil && len(linesWith(log, "Took over a mounted volume", id)) == 0 {
				err = fmt.Errorf("volume %s was not", id)
			}
		}
		return err
	})
	return plugin
}

// wantDerived wants the plugin to have said of no volume that it is not updated, or that the kubelet's request was another one.
func (n *namespace) wantDerived(t *testing.T, plugin *corev1.Pod, ids []string) {
	t.Helper()
	log := must.Get(n.pluginLog(t.Context(), plugin, plugin.CreationTimestamp.Add(-time.Second)))(t)
	for _, text := range []string{"A mounted volume is not updated", logDerived, "is published already, with another", "AlreadyExists"} {
		for _, id := range ids {
			if lines := linesWith(log, text, id); len(lines) > 0 {
				t.Errorf("the plugin logged %s", lines[0])
			}
		}
	}
}

// derivedPods are pods with all that a request is derived from: attributes of every kind, the
// group, and the service account. One has the volume twice.
func derivedPods() []*corev1.Pod {
	plain := newPod("plain",
		refvol("short", attributes{"configMap": "settings"}),
		refvol("twin", attributes{"configMap": "settings"}),
		refvol("login", attributes{"secret": "login"}),
		refvol("pinned", attributes{"secret": "login", "updatePolicy": "Pinned"}),
		refvol("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace", "defaultMode": "0444"}),
		refvol("optional", attributes{"secret": "none", "optional": "true"}))
	group := newPod("group",
		refvol("short", attributes{"configMap": "settings"}),
		refvol("sources", attributes{"onDelete": "Remove", "sources": `[{"configMap": {"name": "settings", "items": [{"key": "key", "path": "a/b"}]}}, {"secret": {"name": "login"}}]`}))
	group.Spec.SecurityContext.FSGroup = new(int64(4711))
	account := newPod("account",
		refvol("short", attributes{"configMap": "settings"}),
		refvol("env", attributes{"sources": "- env: {path: app.env, envFrom: [{configMapRef: {name: settings}}]}\n- podEnv: {path: pod.env, container: probe}\n"}))
	account.Spec.ServiceAccountName = "web"
	account.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "GREETING", Value: "hello"}}
	// The kubelet's own keys, which an author may write all the same.
	odd := newPod("odd", refvol("short", attributes{"configMap": "settings", "csi.storage.k8s.io/ephemeral": "false"}))
	return []*corev1.Pod{plain, group, account, odd}
}

// pluginLog returns what a plugin has logged since a time.
func (c *cluster) pluginLog(ctx context.Context, plugin *corev1.Pod, since time.Time) (string, error) {
	return c.log(ctx, plugin, &corev1.PodLogOptions{SinceTime: &metav1.Time{Time: since}})
}

// linesWith returns the lines of a log that have all of texts.
func linesWith(log string, texts ...string) []string {
	var found []string
	for line := range strings.Lines(log) {
		if containsAll(line, texts) {
			found = append(found, line)
		}
	}
	return found
}
