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
)

// What the plugin logs when it has taken a volume over, when it can't, and when the kubelet's
// request is another one than that which it has derived.
const (
	logTookOver  = "Took over a mounted volume"
	logWaits     = "A mounted volume is not updated"
	logDerived   = "The kubelet's request is not the one that was derived from the pod's spec"
	logDifferent = "is published already, with another"
)

// A plugin that restarts derives from the pods' specs what the kubelet asked of it. The kubelet
// is restarted after that: it publishes every volume again, and no request may differ from the
// derived one.
func TestDerivedRequests(t *testing.T) {
	t.Parallel()
	node := takeQuietNode(t)
	n := newNamespace(t)
	n.createConfigMap("settings", object{"key": "old", "NAME": "value"})
	n.createSecret("login", object{"user": canary("old")})
	n.serviceAccount("web")
	inspector := n.startOnNode("inspector", node)
	var pods []*pod
	for _, spec := range derivedPods() {
		pods = append(pods, n.start(onNode(spec, node)))
	}
	var ids []string
	for _, p := range pods {
		ids = append(ids, p.volumeIDs()...)
	}
	deletePlugin(t, n, inspector, n.mustPlugin(t, node))
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
	before, after := n.restartKubelet(t, node, 1, inspector, ids)
	t.Logf("%d volumes of %d pods taken over and published again: %d mounts before, %d after", len(ids), len(pods), before, after)
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
	n.updateConfigMap("settings", object{"key": "new", "NAME": "value"})
	for _, p := range pods {
		if i := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "short" }); i >= 0 {
			p.awaitText(mountDir+"short/key", "new", podTimeout)
		}
	}
}

// derivedPods are pods with all that a request is derived from: attributes of every kind, the
// group, and the service account. One has the volume twice.
func derivedPods() []*corev1.Pod {
	plain := newPod("plain",
		refvol("short", attributes{"configMap": "settings"}),
		refvol("twin", attributes{"configMap": "settings"}),
		refvol("pinned", attributes{"secret": "login", "updatePolicy": "Pinned"}),
		refvol("in-place", attributes{"configMap": "settings", "writeStrategy": "InPlace", "defaultMode": "0440"}),
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
