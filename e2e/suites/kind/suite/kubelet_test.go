package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// A plugin that restarts derives from the pods' specs what the kubelet asked of it. A kubelet
// that restarts publishes the volumes of all pods again, and no request differs from the derived
// one. Again and again: the node's mounts stay the very ones that they were, no container
// restarts, and volumes stay live. A pod whose object was deleted meanwhile goes on, and terminates.
func TestKubeletRestarts(t *testing.T) {
	t.Parallel()
	node := takeQuietNode(t)
	n := newNamespace(t)
	n.setConfigMap("settings", object{"key": "old", "NAME": "value"})
	n.setConfigMap("doomed", object{"key": canary("last")})
	n.setSecret("login", object{"user": canary("old")})
	n.serviceAccount("web")
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
	if err := n.client.CoreV1().ConfigMaps(n.name).Delete(t.Context(), "doomed", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	runs := n.runs(t, node)
	restarts := harness.Scaled(5, 100)
	began := time.Now()
	before, after := n.restartKubelet(t, node, restarts, inspector, append(orphan.volumeIDs(), ids...))
	t.Logf("%d restarts of the kubelet in %.0f s: %d volumes of %d pods, %d mounts before, %d after",
		restarts, time.Since(began).Seconds(), len(ids)+1, len(pods)+1, before, after)
	if got := n.runs(t, node); !slices.Equal(got, runs) {
		t.Errorf("pods after the restarts: %v, before: %v", got, runs)
	}
	n.wantDerived(t, plugin, ids)

	n.setConfigMap("settings", object{"key": "new", "NAME": "value"})
	n.setSecret("login", object{"user": canary("new")})
	for _, p := range pods {
		p.awaitText(mountDir+"short/key", "new", podTimeout)
	}
	plain := pods[0]
	plain.awaitText(mountDir+"in-place/key", "new", podTimeout)
	plain.awaitText(mountDir+"login/user", canary("new"), podTimeout)
	for p, file := range map[*pod]string{plain: "pinned/user", orphan: "doomed/key"} {
		text := map[*pod]string{plain: canary("old"), orphan: canary("last")}[p]
		if err := p.hasText(t.Context(), "probe", mountDir+file, text); err != nil {
			t.Error(err)
		}
	}
	paths := pluginPaths(t, plugin)
	for _, p := range []*pod{orphan, plain} {
		left := leftovers{inspector: inspector, paths: paths, of: p}
		left.there(t)
		p.delete()
		left.awaitNone(t)
	}
}

// restartKubelet restarts the kubelet of a node so many times, waits each time until it
// has published the volumes again, and checks that the node's mounts are the same. It
// returns the number of them before and after.
func (n *namespace) restartKubelet(t *testing.T, node string, times int, inspector *pod, ids []string) (before, after int) {
	t.Helper()
	first, err := inspector.mountTable(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plugin := n.mustPlugin(t, pluginNamespace, node)
	pods := pluginPaths(t, plugin).pods
	var last []string
	for i := range times {
		since := metav1.NewTime(time.Now())
		known, err := n.publishes(t.Context(), plugin, since, ids)
		if err != nil {
			t.Fatal(err)
		}
		mustDocker(t, "exec", node, "systemctl", "restart", "kubelet")
		eventually(t, podTimeout, "publish by the kubelet that was restarted", func(ctx context.Context) error {
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
		if last, err = inspector.mountTable(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Of containers that have ended a mount may go late.
		added, gone := notIn(first, last), having(pods, notIn(last, first))
		if len(added)+len(gone) > 0 {
			t.Fatalf("mounts after restart %d:\nnew: %q\ngone: %q", i+1, added, gone)
		}
	}
	return len(first), len(last)
}

// publishes counts for each volume the publishes that the plugin has answered OK since
// then; of the first second there may be some from before.
func (n *namespace) publishes(ctx context.Context, plugin *corev1.Pod, since metav1.Time, ids []string) ([]int, error) {
	log, err := n.client.CoreV1().Pods(plugin.Namespace).GetLogs(plugin.Name, &corev1.PodLogOptions{SinceTime: &since}).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	counts := make([]int, len(ids))
	for line := range strings.Lines(string(log)) {
		for i, id := range ids {
			if containsAll(line, []string{`"CSI call done"`, `"method":"NodePublishVolume"`, id}) {
				counts[i]++
			}
		}
	}
	return counts, nil
}

// runs returns the runs of this test's pods and of the plugin's on the node, in order.
func (n *namespace) runs(t *testing.T, node string) []run {
	t.Helper()
	var runs []run
	eventually(t, podTimeout, "all pods on "+node+" ready", func(ctx context.Context) error {
		pods, err := n.client.CoreV1().Pods(n.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		plugin, err := n.findPlugin(ctx, pluginNamespace, node)
		if err != nil || plugin == nil {
			return errors.Join(err, fmt.Errorf("plugin of %s: %v", node, plugin))
		}
		runs = nil
		for _, p := range append(pods.Items, *plugin) {
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

// What the plugin logs when it has taken a volume over, when it can't, and when the kubelet's
// request is another one than that which it has derived.
const (
	logTookOver  = "Took over a mounted volume"
	logWaits     = "A mounted volume is not updated"
	logDerived   = "The kubelet's request is not the one that was derived from the pod's spec"
	logDifferent = "is published already, with another"
)

// restartDerives has the node's plugin restart, and returns it when it has taken all volumes over.
func (n *namespace) restartDerives(t *testing.T, node string, ids []string) *corev1.Pod {
	t.Helper()
	deletePlugin(t, n, n.mustPlugin(t, pluginNamespace, node))
	n.awaitPlugin(t.Context(), t, node)
	plugin := n.mustPlugin(t, pluginNamespace, node)
	eventually(t, podTimeout, "all volumes taken over", func(ctx context.Context) error {
		log, err := n.pluginLog(ctx, plugin)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if len(linesWith(log, logTookOver, id)) == 0 {
				return fmt.Errorf("volume %s was not", id)
			}
		}
		return nil
	})
	return plugin
}

// wantDerived wants the plugin to have said of no volume that the kubelet's request was another one.
func (n *namespace) wantDerived(t *testing.T, plugin *corev1.Pod, ids []string) {
	t.Helper()
	log, err := n.pluginLog(t.Context(), plugin)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{logWaits, logDerived, logDifferent, "AlreadyExists"} {
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

// pluginLog returns what a plugin has logged since it started.
func (c *cluster) pluginLog(ctx context.Context, plugin *corev1.Pod) (string, error) {
	since := metav1.NewTime(plugin.CreationTimestamp.Add(-time.Second))
	log, err := c.client.CoreV1().Pods(plugin.Namespace).GetLogs(plugin.Name, &corev1.PodLogOptions{SinceTime: &since}).DoRaw(ctx)
	return string(log), err
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
