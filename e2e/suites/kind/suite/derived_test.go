package suite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	deletePlugin(t, n, n.mustPlugin(t, node))
	n.awaitPlugin(t.Context(), t, node)
	plugin := n.mustPlugin(t, node)
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
