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
	n.createConfigMap("settings", object{"key": "old", "NAME": "value"})
	n.createConfigMap("doomed", object{"key": canary("last")})
	n.createSecret("login", object{"user": canary("old")})
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
	restarts := harness.Scaled(20, 100)
	began := time.Now()
	before, after := n.restartKubelet(t, node, restarts, inspector, append(orphan.volumeIDs(), ids...))
	t.Logf("%d restarts of the kubelet in %.0f s: %d volumes of %d pods, %d mounts before, %d after",
		restarts, time.Since(began).Seconds(), len(ids)+1, len(pods)+1, before, after)
	if got := n.runs(t, node); !slices.Equal(got, runs) {
		t.Errorf("pods after the restarts: %v, before: %v", got, runs)
	}
	n.wantDerived(t, plugin, ids)

	n.updateConfigMap("settings", object{"key": "new", "NAME": "value"})
	n.updateSecret("login", object{"user": canary("new")})
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
	plugin := n.mustPlugin(t, node)
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
		plugin, err := n.plugin(ctx, node)
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
